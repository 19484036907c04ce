#include "textflag.h"
#include "vec_amd64.h"

// AVX2 kernels over rows and flat slices. n is a multiple of 8; the Go wrappers see to the rest.

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

// func sumSquaresAVX2(n int, x *float32) float64
TEXT ·sumSquaresAVX2(SB), NOSPLIT, $0-24
	MOVQ n+0(FP), CX
	MOVQ x+8(FP), SI
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	SHRQ $3, CX
	JZ   sqdone

sqloop:
	VCVTPS2PD (SI), Y2
	VCVTPS2PD 16(SI), Y3
	VFMADD231PD Y2, Y2, Y0
	VFMADD231PD Y3, Y3, Y1
	ADDQ $32, SI
	DECQ CX
	JNZ  sqloop

sqdone:
	VADDPD Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD X1, X0, X0
	VPERMILPD $1, X0, X1
	VADDSD X1, X0, X0
	VMOVSD X0, ret+16(FP)
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
	VMULPS  Y3, Y2, Y5
	VADDPS  (R8)(AX*1), Y5, Y5
	VMOVUPS Y5, (R8)(AX*1)       // dw + dy*r*x
	VMULPS  (DX)(AX*1), Y2, Y2
	VSUBPS  Y4, Y2, Y2
	VMOVUPS Y2, (DI)(AX*1)       // dy*r*w - x*s
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

// func ropeAVX2(heads, n int, y, x, cos, sin *float32, sign float32)
// n is a head's width; all heads turn by the same tables.
TEXT ·ropeAVX2(SB), NOSPLIT, $0-52
	MOVQ heads+0(FP), R8
	MOVQ y+16(FP), DI
	MOVQ x+24(FP), SI
	VBROADCASTSS sign+48(FP), Y7
	VMOVUPS pairs<>(SB), Y6

ropehead:
	MOVQ n+8(FP), CX
	MOVQ cos+32(FP), DX
	MOVQ sin+40(FP), BX

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
	SUBQ $8, CX
	JG   ropeloop
	DECQ R8
	JNZ  ropehead
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

// func subAVX2(n int, y, a, b *float32)
TEXT ·subAVX2(SB), NOSPLIT, $0-32
	MOVQ n+0(FP), CX
	MOVQ y+8(FP), DI
	MOVQ a+16(FP), SI
	MOVQ b+24(FP), DX
	SHRQ $3, CX
	JZ   subdone

subloop:
	VMOVUPS (SI), Y0
	VSUBPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DX
	ADDQ $32, DI
	DECQ CX
	JNZ  subloop

subdone:
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
