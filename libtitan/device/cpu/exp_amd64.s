#include "textflag.h"
#include "vec_amd64.h"

// AVX2 kernels around an exponential. n is a multiple of 8 unless said.

CONST(one, $0x3f800000)
CONST(magic, $0x4b40007f)  // 1.5*2^23 + 127: adding it rounds to an integer and leaves integer+127 in the low bits

CONST(lo, $0xc2fe0000)     // -127: 2^x of it is 0 here

// Minimax coefficients of 2^f on [-0.5,0.5] with p(0) = 1: of degree 5 (relative error 9e-8) and 6 (2e-9).
CONST(d1, $0x3f317215)
CONST(d2, $0x3e75fcde)
CONST(d3, $0x3d635ba9)
CONST(d4, $0x3c1e7544)
CONST(d5, $0x3aaddd0a)
CONST(e1, $0x3f317218)
CONST(e2, $0x3e75fdee)
CONST(e3, $0x3d635774)
CONST(e4, $0x3c1d96a6)
CONST(e5, $0x3aaf9f2a)
CONST(e6, $0x3920fddc)

CONST(log2e, $0x3fb8aa3b)   // log2(e) in two parts
CONST(log2elo, $0x32a57060)
CONST(expmin, $0xc2b00f34)  // -88.02969: exp of it is 2^-127
CONST(expmax, $0x42b17218)  // 88.72284: exp of it is 2^128
CONST(signbit, $0x80000000)

// EXP2CONSTS loads what EXP2 needs; Y15 and Y14 are its factor and its subtrahend.
#define EXP2CONSTS \
	VMOVUPS lo<>(SB), Y13    \
	VMOVUPS magic<>(SB), Y12 \
	VMOVUPS d5<>(SB), Y11    \
	VMOVUPS d4<>(SB), Y10    \
	VMOVUPS d3<>(SB), Y9     \
	VMOVUPS d2<>(SB), Y8     \
	VMOVUPS d1<>(SB), Y7     \
	VMOVUPS one<>(SB), Y6

// EXP2 sets p = 2^(x*Y15-Y14); t and f are scratch. The exponent is n+f with n integer: a polynomial gives 2^f, and 2^n is put
// together from bits. Exponents below -126.5 give 0, NaN gives NaN.
#define EXP2(x, t, f, p) \
	VFMSUB213PS Y14, Y15, x \
	VMAXPS      x, Y13, x   \
	VADDPS      x, Y12, t   \
	VSUBPS      Y12, t, f   \
	VSUBPS      f, x, f     \
	VPSLLD      $23, t, t   \
	VMOVAPS     Y11, p      \
	VFMADD213PS Y10, f, p   \
	VFMADD213PS Y9, f, p    \
	VFMADD213PS Y8, f, p    \
	VFMADD213PS Y7, f, p    \
	VFMADD213PS Y6, f, p    \
	VMULPS      t, p, p

// func exp2AVX2(n int, y, x *float32, mul, sub float32) float32
TEXT ·exp2AVX2(SB), NOSPLIT, $0-36
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	VBROADCASTSS mul+24(FP), Y15
	VBROADCASTSS sub+28(FP), Y14
	EXP2CONSTS
	VXORPS Y4, Y4, Y4
	SHRQ $3, CX
	JZ   expdone

exploop:
	VMOVUPS (SI), Y0
	EXP2(Y0, Y1, Y2, Y3)
	VMOVUPS Y3, (DI)
	VADDPS  Y3, Y4, Y4
	ADDQ    $32, SI
	ADDQ    $32, DI
	DECQ    CX
	JNZ     exploop

expdone:
	HSUM(Y4, X4, X0)
	VMOVSS X4, ret+32(FP)
	VZEROUPPER
	RET

// ROWSEEN begins a row of scores at p: BX = seen = min(max(AX, 0), DX), R12 = seen rounded up to 8. Scores from seen to R12 become
// -Inf, so that 2^ gives 0, and those from R12 to R13 become 0. It needs SI and Y0.
#define ROWSEEN(p, pad, padded, zero, zeroed) \
	MOVQ    AX, BX           \
	XORL    SI, SI           \
	TESTQ   BX, BX           \
	CMOVQLT SI, BX           \
	CMPQ    BX, DX           \
	CMOVQGT DX, BX           \
	LEAQ    7(BX), R12       \
	ANDQ    $-8, R12         \
	MOVQ    BX, SI           \
pad:                             \
	CMPQ    SI, R12          \
	JGE     padded           \
	MOVL    $0xff800000, (p)(SI*4) \
	INCQ    SI               \
	JMP     pad              \
padded:                          \
	VXORPS  Y0, Y0, Y0       \
zero:                            \
	CMPQ    SI, R13          \
	JGE     zeroed           \
	VMOVUPS Y0, (p)(SI*4)    \
	ADDQ    $8, SI           \
	JMP     zero             \
zeroed:

// ROWEND sets R13, where zeros end: 8 past DX rounded up to 8, but no further than ld.
#define ROWEND(ld) \
	LEAQ    15(DX), R13 \
	ANDQ    $-8, R13    \
	CMPQ    R13, ld     \
	CMOVQGT ld, R13

// func softmaxRowsAVX2(rows, first, n int, p *float32, ld int, mul float32, top, down, sum *float32)
TEXT ·softmaxRowsAVX2(SB), NOSPLIT, $0-72
	MOVQ rows+0(FP), CX
	MOVQ first+8(FP), AX
	MOVQ n+16(FP), DX
	MOVQ p+24(FP), DI
	MOVQ ld+32(FP), R8
	VBROADCASTSS mul+40(FP), Y15
	MOVQ top+48(FP), R9
	MOVQ down+56(FP), R10
	MOVQ sum+64(FP), R11
	EXP2CONSTS
	ROWEND(R8)

smrow:
	ROWSEEN(DI, smpad, smpadded, smzero, smzeroed)
	VXORPS X4, X4, X4
	VMOVSS X4, (R10)
	TESTQ  R12, R12
	JZ     smnext
	VMOVUPS (DI), Y5
	MOVQ   $8, SI

smmax:
	CMPQ   SI, R12
	JGE    smtop
	VMAXPS (DI)(SI*4), Y5, Y5
	ADDQ   $8, SI
	JMP    smmax

smtop:
	VEXTRACTF128 $1, Y5, X0
	VMAXPS X0, X5, X5
	VPERMILPS $0x4e, X5, X0
	VMAXPS X0, X5, X5
	VPERMILPS $0xb1, X5, X0
	VMAXPS X0, X5, X5
	VMULSS X15, X5, X5
	VMOVSS (R9), X0
	VMAXSS X5, X0, X5
	VSUBSS X5, X0, X0
	VMOVSS X0, (R10)
	VMOVSS X5, (R9)
	VBROADCASTSS X5, Y14
	XORL   SI, SI

smexp:
	VMOVUPS (DI)(SI*4), Y0
	EXP2(Y0, Y1, Y2, Y3)
	VMOVUPS Y3, (DI)(SI*4)
	VADDPS Y3, Y4, Y4
	ADDQ   $8, SI
	CMPQ   SI, R12
	JLT    smexp
	HSUM(Y4, X4, X0)

smnext:
	VMOVSS X4, (R11)
	ADDQ $4, R9
	ADDQ $4, R10
	ADDQ $4, R11
	INCQ AX
	LEAQ (DI)(R8*4), DI
	DECQ CX
	JNZ  smrow
	VZEROUPPER
	RET

// func softGradRowsAVX2(rows, first, n int, s, dp *float32, ld int, mul float32, shift, delta *float32)
TEXT ·softGradRowsAVX2(SB), NOSPLIT, $0-72
	MOVQ rows+0(FP), CX
	MOVQ first+8(FP), AX
	MOVQ n+16(FP), DX
	MOVQ s+24(FP), DI
	MOVQ dp+32(FP), R11
	MOVQ ld+40(FP), R8
	VBROADCASTSS mul+48(FP), Y15
	MOVQ shift+56(FP), R9
	MOVQ delta+64(FP), R10
	EXP2CONSTS
	ROWEND(R8)

sgrow:
	ROWSEEN(DI, sgpad, sgpadded, sgzero, sgzeroed)
	VBROADCASTSS (R9), Y14
	VBROADCASTSS (R10), Y5
	XORL  SI, SI
	TESTQ R12, R12
	JZ    sgrest

sgexp:
	VMOVUPS (DI)(SI*4), Y0
	EXP2(Y0, Y1, Y2, Y3)
	VMOVUPS Y3, (DI)(SI*4)
	VMOVUPS (R11)(SI*4), Y0
	VSUBPS  Y5, Y0, Y0
	VMULPS  Y3, Y0, Y0
	VMOVUPS Y0, (R11)(SI*4)
	ADDQ    $8, SI
	CMPQ    SI, R12
	JLT     sgexp

sgrest:
	VXORPS Y0, Y0, Y0

sgrestloop:
	CMPQ    SI, R13
	JGE     sgnext
	VMOVUPS Y0, (R11)(SI*4)
	ADDQ    $8, SI
	JMP     sgrestloop

sgnext:
	ADDQ $4, R9
	ADDQ $4, R10
	INCQ AX
	LEAQ (DI)(R8*4), DI
	LEAQ (R11)(R8*4), R11
	DECQ CX
	JNZ  sgrow
	VZEROUPPER
	RET

// SIGMOIDCONSTS loads what SIGMOID needs.
#define SIGMOIDCONSTS \
	VMOVUPS log2e<>(SB), Y15   \
	VMOVUPS log2elo<>(SB), Y14 \
	VMOVUPS expmin<>(SB), Y13  \
	VMOVUPS magic<>(SB), Y12   \
	VMOVUPS e6<>(SB), Y11      \
	VMOVUPS e5<>(SB), Y10      \
	VMOVUPS e4<>(SB), Y9       \
	VMOVUPS e3<>(SB), Y8       \
	VMOVUPS e2<>(SB), Y7       \
	VMOVUPS e1<>(SB), Y6

// SIGMOID sets p = 1/(1+exp(-a)); a is kept, x, t and f are scratch. As EXP2, but log2(e) has two parts, so that exp is right to
// 2 units in the last place wherever a is. The upper clamp makes exp(-a) Inf and p 0.
#define SIGMOID(a, x, t, f, p) \
	VXORPS      signbit<>(SB), a, x \
	VMAXPS      x, Y13, x           \
	VMOVUPS     expmax<>(SB), p     \
	VMINPS      x, p, x             \
	VMOVAPS     Y12, t              \
	VFMADD231PS Y15, x, t           \
	VSUBPS      Y12, t, f           \
	VFMSUB231PS Y15, x, f           \
	VFMADD231PS Y14, x, f           \
	VPSLLD      $23, t, t           \
	VMOVAPS     Y11, p              \
	VFMADD213PS Y10, f, p           \
	VFMADD213PS Y9, f, p            \
	VFMADD213PS Y8, f, p            \
	VFMADD213PS Y7, f, p            \
	VFMADD213PS Y6, f, p            \
	VMOVUPS     one<>(SB), x        \
	VFMADD213PS x, f, p             \
	VMULPS      t, p, p             \
	VADDPS      x, p, p             \
	VDIVPS      p, x, p

// func sigmoidAVX2(n int, y, x *float32)
TEXT ·sigmoidAVX2(SB), NOSPLIT, $0-24
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	SIGMOIDCONSTS
	SHRQ $3, CX
	JZ   sigmoiddone

sigmoidloop:
	VMOVUPS (SI), Y5
	SIGMOID(Y5, Y0, Y1, Y2, Y3)
	VMOVUPS Y3, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	DECQ CX
	JNZ  sigmoidloop

sigmoiddone:
	VZEROUPPER
	RET

// func siluAVX2(n int, y, a, b *float32)
TEXT ·siluAVX2(SB), NOSPLIT, $0-32
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ a+16(FP), SI
	MOVQ b+24(FP), DX
	SIGMOIDCONSTS
	SHRQ $3, CX
	JZ   siludone

siluloop:
	VMOVUPS (SI), Y5
	SIGMOID(Y5, Y0, Y1, Y2, Y3)
	VMULPS  Y3, Y5, Y5
	VMULPS  (DX), Y5, Y5
	VMOVUPS Y5, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	ADDQ $32, DX
	DECQ CX
	JNZ  siluloop

siludone:
	VZEROUPPER
	RET

// func siluGradAVX2(n int, da, db, dy, a, b *float32)
TEXT ·siluGradAVX2(SB), NOSPLIT, $0-48
	MOVQ n+0(FP), CX
	MOVQ da+8(FP), DI
	MOVQ db+16(FP), R8
	MOVQ dy+24(FP), R9
	MOVQ a+32(FP), SI
	MOVQ b+40(FP), DX
	SIGMOIDCONSTS
	SHRQ $3, CX
	JZ   sgdone
	XORQ AX, AX

sgloop:
	VMOVUPS (SI)(AX*1), Y5
	SIGMOID(Y5, Y0, Y1, Y2, Y3)
	VMOVUPS (R9)(AX*1), Y0
	VMULPS  Y5, Y0, Y2
	VMULPS  Y3, Y2, Y2            // db = dy*a*s
	VMULPS  (DX)(AX*1), Y0, Y1
	VMULPS  Y3, Y1, Y1            // dy*b*s
	VMOVUPS one<>(SB), Y4
	VSUBPS  Y3, Y4, Y3            // 1-s
	VMULPS  Y5, Y3, Y3
	VADDPS  Y4, Y3, Y3            // 1+a*(1-s)
	VMULPS  Y3, Y1, Y1
	VMOVUPS Y2, (R8)(AX*1)        // all inputs are read: outputs may be the same memory
	VMOVUPS Y1, (DI)(AX*1)
	ADDQ $32, AX
	DECQ CX
	JNZ  sgloop

sgdone:
	VZEROUPPER
	RET
