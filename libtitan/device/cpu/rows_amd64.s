#include "textflag.h"

// AVX2 row kernels. n is a multiple of 8 throughout; the Go wrappers pad what is left.

#define CONST(name, bits) \
DATA name<>+0(SB)/4, bits  \
DATA name<>+4(SB)/4, bits  \
DATA name<>+8(SB)/4, bits  \
DATA name<>+12(SB)/4, bits \
DATA name<>+16(SB)/4, bits \
DATA name<>+20(SB)/4, bits \
DATA name<>+24(SB)/4, bits \
DATA name<>+28(SB)/4, bits \
GLOBL name<>(SB), RODATA|NOPTR, $32

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
CONST(expmax, $0x42b17218) // 88.72284: exp of it is 2^128
CONST(signbit, $0x80000000)
CONST(round, $0x7fff)
CONST(onebit, $1)
CONST(quiet, $0x40)

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

// HSUM adds the eight lanes of y (x its low half) into x's lane 0, in the order of sum8.
#define HSUM(y, x, t) \
	VEXTRACTF128 $1, y, t  \
	VADDPS       t, x, x   \
	VPERMILPS    $0x4e, x, t \
	VADDPS       t, x, x   \
	VPERMILPS    $0xb1, x, t \
	VADDPS       t, x, x

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

// func maxAVX2(n int, x *float32) float32
TEXT ·maxAVX2(SB), NOSPLIT, $0-20
	MOVQ n+0(FP), CX
	MOVQ x+8(FP), SI
	VMOVUPS (SI), Y0
	VMOVAPS Y0, Y1
	SUBQ $16, CX
	JLT  maxtail

maxloop:
	VMAXPS (SI), Y0, Y0
	VMAXPS 32(SI), Y1, Y1
	ADDQ   $64, SI
	SUBQ   $16, CX
	JGE    maxloop

maxtail:
	TESTQ $8, CX
	JZ    maxdone
	VMAXPS (SI), Y0, Y0

maxdone:
	VMAXPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET

// func dotAVX2(n int, x, y *float32) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-28
	MOVQ n+0(FP), CX
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DI
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	SUBQ $16, CX
	JLT  dottail

dotloop:
	VMOVUPS (SI), Y2
	VMOVUPS 32(SI), Y3
	VFMADD231PS (DI), Y2, Y0
	VFMADD231PS 32(DI), Y3, Y1
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JGE  dotloop

dottail:
	TESTQ $8, CX
	JZ    dotdone
	VMOVUPS (SI), Y2
	VFMADD231PS (DI), Y2, Y0

dotdone:
	VADDPS Y1, Y0, Y0
	HSUM(Y0, X0, X1)
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

// func dot3AVX2(n int, x, y, z *float32) float32
TEXT ·dot3AVX2(SB), NOSPLIT, $0-36
	MOVQ n+0(FP), CX
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DI
	MOVQ z+24(FP), DX
	VXORPS Y0, Y0, Y0
	SHRQ $3, CX
	JZ   dot3done

dot3loop:
	VMOVUPS (SI), Y2
	VMULPS  (DI), Y2, Y2
	VFMADD231PS (DX), Y2, Y0
	ADDQ $32, SI
	ADDQ $32, DI
	ADDQ $32, DX
	DECQ CX
	JNZ  dot3loop

dot3done:
	HSUM(Y0, X0, X1)
	VMOVSS X0, ret+32(FP)
	VZEROUPPER
	RET

// func scaleAVX2(n int, y, x *float32, s float32)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-28
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	VBROADCASTSS s+24(FP), Y0
	SHRQ $3, CX
	JZ   scaledone

scaleloop:
	VMULPS  (SI), Y0, Y1
	VMOVUPS Y1, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	DECQ CX
	JNZ  scaleloop

scaledone:
	VZEROUPPER
	RET

// func scaleMulAVX2(n int, y, x, w *float32, s float32)
TEXT ·scaleMulAVX2(SB), NOSPLIT, $0-36
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	MOVQ w+24(FP), DX
	VBROADCASTSS s+32(FP), Y0
	SHRQ $3, CX
	JZ   smdone

smloop:
	VMULPS  (SI), Y0, Y1
	VMULPS  (DX), Y1, Y1
	VMOVUPS Y1, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	ADDQ $32, DX
	DECQ CX
	JNZ  smloop

smdone:
	VZEROUPPER
	RET

// func normGradAVX2(n int, dx, dw, dy, x, w *float32, r, s float32)
TEXT ·normGradAVX2(SB), NOSPLIT, $0-56
	MOVQ n+0(FP), CX
	MOVQ dx+8(FP), DI
	MOVQ dw+16(FP), R8
	MOVQ dy+24(FP), R9
	MOVQ x+32(FP), SI
	MOVQ w+40(FP), DX
	VBROADCASTSS r+48(FP), Y0
	VBROADCASTSS s+52(FP), Y1
	SHRQ $3, CX
	JZ   ngdone
	XORQ AX, AX

ngloop:
	VMULPS  (R9)(AX*1), Y0, Y2   // dy*r
	VMOVUPS (SI)(AX*1), Y3
	VMULPS  Y1, Y3, Y4           // x*s
	VMOVUPS (R8)(AX*1), Y5
	VFMADD231PS Y3, Y2, Y5
	VMOVUPS Y5, (R8)(AX*1)
	VFMSUB132PS (DX)(AX*1), Y4, Y2
	VMOVUPS Y2, (DI)(AX*1)
	ADDQ $32, AX
	DECQ CX
	JNZ  ngloop

ngdone:
	VZEROUPPER
	RET

DATA pairs<>+0(SB)/8, $0x0000000000000000
DATA pairs<>+8(SB)/8, $0x0000000100000001
DATA pairs<>+16(SB)/8, $0x0000000200000002
DATA pairs<>+24(SB)/8, $0x0000000300000003
GLOBL pairs<>(SB), RODATA|NOPTR, $32

// func ropeAVX2(n int, y, x, cos, sin *float32, sign float32)
TEXT ·ropeAVX2(SB), NOSPLIT, $0-44
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	MOVQ cos+24(FP), DX
	MOVQ sin+32(FP), BX
	VBROADCASTSS sign+40(FP), Y7
	VMOVUPS pairs<>(SB), Y6
	SHRQ $3, CX
	JZ   ropedone

ropeloop:
	VMOVUPS (DX), X0
	VPERMPS Y0, Y6, Y0           // c0 c0 c1 c1 ..
	VMOVUPS (BX), X1
	VPERMPS Y1, Y6, Y1
	VMULPS  Y7, Y1, Y1
	VMOVUPS (SI), Y2
	VPERMILPS $0xb1, Y2, Y3      // x1 x0 x3 x2 ..
	VMULPS  Y1, Y3, Y3
	VFMADDSUB231PS Y0, Y2, Y3    // even x*c - x'*s, odd x*c + x'*s
	VMOVUPS Y3, (DI)
	ADDQ $16, DX
	ADDQ $16, BX
	ADDQ $32, SI
	ADDQ $32, DI
	DECQ CX
	JNZ  ropeloop

ropedone:
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
	VMULPS  Y3, Y0, Y1            // dy*s
	VMULPS  Y5, Y1, Y2            // db = dy*s*a
	VMOVUPS one<>(SB), Y4
	VSUBPS  Y3, Y4, Y3            // 1-s
	VFMADD213PS Y4, Y5, Y3        // 1+a*(1-s)
	VMULPS  (DX)(AX*1), Y1, Y1
	VMULPS  Y3, Y1, Y1
	VMOVUPS Y2, (R8)(AX*1)        // all inputs are read: outputs may be the same memory
	VMOVUPS Y1, (DI)(AX*1)
	ADDQ $32, AX
	DECQ CX
	JNZ  sgloop

sgdone:
	VZEROUPPER
	RET

// func addAVX2(n int, y, a, b *float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-32
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ a+16(FP), SI
	MOVQ b+24(FP), DX
	SHRQ $3, CX
	JZ   adddone

addloop:
	VMOVUPS (SI), Y0
	VADDPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DX
	ADDQ $32, DI
	DECQ CX
	JNZ  addloop

adddone:
	VZEROUPPER
	RET

// func adamwAVX2(n int, p, grad, m, v *float32, s *adamScalars)
TEXT ·adamwAVX2(SB), NOSPLIT, $0-48
	MOVQ n+0(FP), CX
	MOVQ p+8(FP), DI
	MOVQ grad+16(FP), SI
	MOVQ m+24(FP), R8
	MOVQ v+32(FP), R9
	MOVQ s+40(FP), AX
	VBROADCASTSS 0(AX), Y8   // gradScale
	VBROADCASTSS 4(AX), Y9   // decay
	VBROADCASTSS 8(AX), Y10  // 1-beta1
	VBROADCASTSS 12(AX), Y11 // beta2
	VBROADCASTSS 16(AX), Y12 // 1-beta2
	VBROADCASTSS 20(AX), Y13 // sqrt(c2)
	VBROADCASTSS 24(AX), Y14 // eps
	VBROADCASTSS 28(AX), Y15 // -lr/c1
	SHRQ $3, CX
	JZ   adamdone
	XORQ AX, AX

adamloop:
	VMULPS  (SI)(AX*1), Y8, Y0
	VMOVUPS (R8)(AX*1), Y1
	VSUBPS  Y1, Y0, Y2
	VFMADD231PS Y10, Y2, Y1       // m += (g-m)*(1-beta1)
	VMOVUPS Y1, (R8)(AX*1)
	VMULPS  (R9)(AX*1), Y11, Y2
	VMULPS  Y0, Y0, Y3
	VFMADD231PS Y12, Y3, Y2       // v = v*beta2 + g*g*(1-beta2)
	VMOVUPS Y2, (R9)(AX*1)
	VSQRTPS Y2, Y3
	VDIVPS  Y13, Y3, Y3
	VADDPS  Y14, Y3, Y3
	VMULPS  Y15, Y1, Y1
	VDIVPS  Y3, Y1, Y1
	VMOVUPS (DI)(AX*1), Y4
	VFMADD213PS Y1, Y9, Y4        // p = p*decay - lr/c1*m/denom
	VMOVUPS Y4, (DI)(AX*1)
	ADDQ $32, AX
	DECQ CX
	JNZ  adamloop

adamdone:
	VZEROUPPER
	RET

// func widenAVX2(n int, y *float32, x *uint16)
TEXT ·widenAVX2(SB), NOSPLIT, $0-24
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	SHRQ $3, CX
	JZ   widendone

widenloop:
	VPMOVZXWD (SI), Y0
	VPSLLD  $16, Y0, Y0
	VMOVDQU Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JNZ  widenloop

widendone:
	VZEROUPPER
	RET

// func narrowAVX2(n int, y *uint16, x *float32)
// Ties to even; a NaN keeps its upper half and becomes quiet, as dtype.BF16 has it.
TEXT ·narrowAVX2(SB), NOSPLIT, $0-24
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	VMOVDQU round<>(SB), Y7
	VMOVDQU onebit<>(SB), Y6
	VMOVDQU quiet<>(SB), Y5
	SHRQ $3, CX
	JZ   narrowdone

narrowloop:
	VMOVDQU (SI), Y0
	VPSRLD  $16, Y0, Y1
	VPAND   Y6, Y1, Y2
	VPADDD  Y7, Y0, Y3
	VPADDD  Y2, Y3, Y3
	VPSRLD  $16, Y3, Y3
	VPOR    Y5, Y1, Y1
	VCMPPS  $3, Y0, Y0, Y2       // NaN
	VPBLENDVB Y2, Y1, Y3, Y3
	VPACKUSDW Y3, Y3, Y3
	VPERMQ  $0x08, Y3, Y3
	VMOVDQU X3, (DI)
	ADDQ $32, SI
	ADDQ $16, DI
	DECQ CX
	JNZ  narrowloop

narrowdone:
	VZEROUPPER
	RET

// func copyRowsAVX2(rows, n int, dst *float32, dld int, src *float32, sld int)
// A tight loop keeps many rows in flight: where rows lie far apart each one is a cache miss.
TEXT ·copyRowsAVX2(SB), NOSPLIT, $0-48
	MOVQ rows+0(FP), CX
	MOVQ n+8(FP), DX
	MOVQ dst+16(FP), DI
	MOVQ dld+24(FP), R8
	MOVQ src+32(FP), SI
	MOVQ sld+40(FP), R9
	SHLQ $2, DX
	SHLQ $2, R8
	SHLQ $2, R9
	TESTQ CX, CX
	JZ   copydone

copyrow:
	XORQ AX, AX

copyloop:
	VMOVUPS (SI)(AX*1), Y0
	VMOVUPS Y0, (DI)(AX*1)
	ADDQ $32, AX
	CMPQ AX, DX
	JLT  copyloop
	ADDQ R8, DI
	ADDQ R9, SI
	DECQ CX
	JNZ  copyrow

copydone:
	VZEROUPPER
	RET

// func packStripsAVX2(rows, strips, w int, dst, src *float32, sld int)
// dst[(t*rows+r)*w+c] = src[r*sld+t*w+c] for t < strips, c < w; w is even.
TEXT ·packStripsAVX2(SB), NOSPLIT, $0-48
	MOVQ rows+0(FP), CX
	MOVQ w+16(FP), R10
	MOVQ dst+24(FP), DI
	MOVQ src+32(FP), SI
	MOVQ sld+40(FP), R9
	SHLQ $2, R9
	MOVQ CX, R8
	IMULQ R10, R8
	SHLQ $2, R8              // bytes of a strip

striprow:
	MOVQ strips+8(FP), DX
	MOVQ SI, AX
	MOVQ DI, BX

strip:
	MOVQ BX, R12
	MOVQ R10, R11
	SUBQ $8, R11
	JLT  strip4

strip8:
	VMOVUPS (AX), Y0
	VMOVUPS Y0, (R12)
	ADDQ $32, AX
	ADDQ $32, R12
	SUBQ $8, R11
	JGE  strip8

strip4:
	TESTQ $4, R10
	JZ    strip2
	VMOVUPS (AX), X0
	VMOVUPS X0, (R12)
	ADDQ $16, AX
	ADDQ $16, R12

strip2:
	TESTQ $2, R10
	JZ    stripnext
	MOVQ (AX), R13
	MOVQ R13, (R12)
	ADDQ $8, AX

stripnext:
	ADDQ R8, BX
	DECQ DX
	JNZ  strip
	ADDQ R9, SI
	LEAQ (DI)(R10*4), DI
	DECQ CX
	JNZ  striprow
	VZEROUPPER
	RET

// TRANSPOSE4 transposes four rows of eight: a, b, c and d become columns 0|4, 1|5, 2|6 and 3|7.
#define TRANSPOSE4(a, b, c, d, t0, t1, t2, t3) \
	VUNPCKLPS b, a, t0       \
	VUNPCKHPS b, a, t1       \
	VUNPCKLPS d, c, t2       \
	VUNPCKHPS d, c, t3       \
	VUNPCKLPD t2, t0, a      \
	VUNPCKHPD t2, t0, b      \
	VUNPCKLPD t3, t1, c      \
	VUNPCKHPD t3, t1, d

// func transpose8AVX2(n int, dst *float32, dld int, src *float32, sld int)
// dst[c*dld+r] = src[r*sld+c] for r < 8 and c < n, n a multiple of 8.
TEXT ·transpose8AVX2(SB), NOSPLIT, $0-40
	MOVQ n+0(FP), CX
	MOVQ dst+8(FP), DI
	MOVQ dld+16(FP), R8
	MOVQ src+24(FP), SI
	MOVQ sld+32(FP), R9
	SHLQ $2, R8
	SHLQ $2, R9
	LEAQ (R8)(R8*2), R10
	LEAQ (R9)(R9*2), R11
	SHRQ $3, CX
	JZ   trdone

trloop:
	LEAQ (SI)(R9*4), DX
	LEAQ (DI)(R8*4), BX
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R9*1), Y1
	VMOVUPS (SI)(R9*2), Y2
	VMOVUPS (SI)(R11*1), Y3
	VMOVUPS (DX), Y4
	VMOVUPS (DX)(R9*1), Y5
	VMOVUPS (DX)(R9*2), Y6
	VMOVUPS (DX)(R11*1), Y7
	TRANSPOSE4(Y0, Y1, Y2, Y3, Y8, Y9, Y10, Y11)
	TRANSPOSE4(Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11)
	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x31, Y7, Y3, Y15
	VMOVUPS Y8, (DI)
	VMOVUPS Y9, (DI)(R8*1)
	VMOVUPS Y10, (DI)(R8*2)
	VMOVUPS Y11, (DI)(R10*1)
	VMOVUPS Y12, (BX)
	VMOVUPS Y13, (BX)(R8*1)
	VMOVUPS Y14, (BX)(R8*2)
	VMOVUPS Y15, (BX)(R10*1)
	ADDQ $32, SI
	LEAQ (BX)(R8*4), DI
	DECQ CX
	JNZ  trloop

trdone:
	VZEROUPPER
	RET
