#include "textflag.h"

// Product tiles; see tileFunc for what they compute. The accumulators stay in registers over all of k; rows of A are
// read where they lie (row stride rs, step ps), rows of B are loaded whole.

// ---- AVX2: 6 rows x 16 columns, accumulators Y0-Y11, B in Y12-Y13.

#define FMA6(addr, tmp, acc0, acc1) \
	VBROADCASTSS addr, tmp         \
	VFMADD231PS  Y12, tmp, acc0    \
	VFMADD231PS  Y13, tmp, acc1

#define ADD6(acc0, acc1) \
	VADDPS (DX), acc0, acc0   \
	VADDPS 32(DX), acc1, acc1 \
	ADDQ   BX, DX

#define STORE6(acc0, acc1) \
	VMOVUPS acc0, (DX)   \
	VMOVUPS acc1, 32(DX) \
	ADDQ    BX, DX

// func tile6x16(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)
TEXT ·tile6x16(SB), NOSPLIT, $0-81
	MOVQ rs+16(FP), R8
	SHLQ $2, R8             // bytes between rows of A
	LEAQ (R8)(R8*2), R9     // 3 rows
	LEAQ (R8)(R8*4), R10    // 5 rows
	MOVQ ps+24(FP), R11
	SHLQ $2, R11
	MOVQ b+32(FP), R13
	MOVQ bs+40(FP), R12
	SHLQ $2, R12
	MOVQ c+56(FP), AX
	MOVQ ldc+64(FP), BX
	SHLQ $2, BX

panel:
	MOVQ   k+0(FP), CX
	MOVQ   a+8(FP), SI
	MOVQ   R13, DI
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	TESTQ  CX, CX
	JZ     done

step:
	VMOVUPS (DI), Y12
	VMOVUPS 32(DI), Y13
	FMA6((SI), Y14, Y0, Y1)
	FMA6((SI)(R8*1), Y15, Y2, Y3)
	FMA6((SI)(R8*2), Y14, Y4, Y5)
	FMA6((SI)(R9*1), Y15, Y6, Y7)
	FMA6((SI)(R8*4), Y14, Y8, Y9)
	FMA6((SI)(R10*1), Y15, Y10, Y11)
	ADDQ    R11, SI
	ADDQ    R12, DI
	DECQ    CX
	JNZ     step

done:
	CMPB add+80(FP), $0
	JEQ  store
	MOVQ AX, DX
	ADD6(Y0, Y1)
	ADD6(Y2, Y3)
	ADD6(Y4, Y5)
	ADD6(Y6, Y7)
	ADD6(Y8, Y9)
	ADD6(Y10, Y11)

store:
	MOVQ AX, DX
	STORE6(Y0, Y1)
	STORE6(Y2, Y3)
	STORE6(Y4, Y5)
	STORE6(Y6, Y7)
	STORE6(Y8, Y9)
	STORE6(Y10, Y11)
	ADDQ $64, AX
	MOVQ bp+48(FP), CX
	LEAQ (R13)(CX*4), R13
	DECQ panels+72(FP)
	JNZ  panel
	VZEROUPPER
	RET

// ---- AVX-512: 12 rows x 32 columns, accumulators Z0-Z23, B in Z24-Z25.

#define ZERO12 \
	VPXORQ Z0, Z0, Z0    \
	VPXORQ Z1, Z1, Z1    \
	VPXORQ Z2, Z2, Z2    \
	VPXORQ Z3, Z3, Z3    \
	VPXORQ Z4, Z4, Z4    \
	VPXORQ Z5, Z5, Z5    \
	VPXORQ Z6, Z6, Z6    \
	VPXORQ Z7, Z7, Z7    \
	VPXORQ Z8, Z8, Z8    \
	VPXORQ Z9, Z9, Z9    \
	VPXORQ Z10, Z10, Z10 \
	VPXORQ Z11, Z11, Z11 \
	VPXORQ Z12, Z12, Z12 \
	VPXORQ Z13, Z13, Z13 \
	VPXORQ Z14, Z14, Z14 \
	VPXORQ Z15, Z15, Z15 \
	VPXORQ Z16, Z16, Z16 \
	VPXORQ Z17, Z17, Z17 \
	VPXORQ Z18, Z18, Z18 \
	VPXORQ Z19, Z19, Z19 \
	VPXORQ Z20, Z20, Z20 \
	VPXORQ Z21, Z21, Z21 \
	VPXORQ Z22, Z22, Z22 \
	VPXORQ Z23, Z23, Z23

#define FMA12(addr, tmp, acc0, acc1) \
	VBROADCASTSS addr, tmp          \
	VFMADD231PS  Z24, tmp, acc0     \
	VFMADD231PS  Z25, tmp, acc1

#define ADD12(acc0, acc1) \
	VADDPS (DX), acc0, acc0   \
	VADDPS 64(DX), acc1, acc1 \
	ADDQ   BX, DX

#define STORE12(acc0, acc1) \
	VMOVUPS acc0, (DX)   \
	VMOVUPS acc1, 64(DX) \
	ADDQ    BX, DX

// ARGS12 loads the arguments that stay in registers over all panels.
#define ARGS12 \
	MOVQ rs+16(FP), R8   \
	SHLQ $2, R8          \
	LEAQ (R8)(R8*2), R9  \
	MOVQ ps+24(FP), R11  \
	SHLQ $2, R11         \
	MOVQ b+32(FP), R13   \
	MOVQ bs+40(FP), R12  \
	SHLQ $2, R12         \
	MOVQ c+56(FP), AX    \
	MOVQ ldc+64(FP), BX  \
	SHLQ $2, BX

// START12 begins a panel: SI, DX and R10 point to rows 0, 4 and 8 of A.
#define START12 \
	MOVQ k+0(FP), CX      \
	MOVQ a+8(FP), SI      \
	LEAQ (SI)(R8*4), DX   \
	LEAQ (SI)(R8*8), R10  \
	MOVQ R13, DI          \
	ZERO12

// NEXT12 moves on by one step of k.
#define NEXT12 \
	ADDQ R11, SI  \
	ADDQ R11, DX  \
	ADDQ R11, R10 \
	ADDQ R12, DI  \
	DECQ CX

// OUT12 adds the tile at AX to the accumulators when add is set, stores them there, and moves AX to the next panel.
#define OUT12(store) \
	MOVQ AX, DX       \
	JEQ  store        \
	ADD12(Z0, Z1)     \
	ADD12(Z2, Z3)     \
	ADD12(Z4, Z5)     \
	ADD12(Z6, Z7)     \
	ADD12(Z8, Z9)     \
	ADD12(Z10, Z11)   \
	ADD12(Z12, Z13)   \
	ADD12(Z14, Z15)   \
	ADD12(Z16, Z17)   \
	ADD12(Z18, Z19)   \
	ADD12(Z20, Z21)   \
	ADD12(Z22, Z23)   \
store:                    \
	MOVQ AX, DX       \
	STORE12(Z0, Z1)   \
	STORE12(Z2, Z3)   \
	STORE12(Z4, Z5)   \
	STORE12(Z6, Z7)   \
	STORE12(Z8, Z9)   \
	STORE12(Z10, Z11) \
	STORE12(Z12, Z13) \
	STORE12(Z14, Z15) \
	STORE12(Z16, Z17) \
	STORE12(Z18, Z19) \
	STORE12(Z20, Z21) \
	STORE12(Z22, Z23) \
	ADDQ $128, AX

// func tile12x32(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)
TEXT ·tile12x32(SB), NOSPLIT, $0-81
	ARGS12

panel12:
	START12
	TESTQ CX, CX
	JZ    done12

step12:
	VMOVUPS (DI), Z24
	VMOVUPS 64(DI), Z25
	FMA12((SI), Z26, Z0, Z1)
	FMA12((SI)(R8*1), Z27, Z2, Z3)
	FMA12((SI)(R8*2), Z28, Z4, Z5)
	FMA12((SI)(R9*1), Z29, Z6, Z7)
	FMA12((DX), Z26, Z8, Z9)
	FMA12((DX)(R8*1), Z27, Z10, Z11)
	FMA12((DX)(R8*2), Z28, Z12, Z13)
	FMA12((DX)(R9*1), Z29, Z14, Z15)
	FMA12((R10), Z26, Z16, Z17)
	FMA12((R10)(R8*1), Z27, Z18, Z19)
	FMA12((R10)(R8*2), Z28, Z20, Z21)
	FMA12((R10)(R9*1), Z29, Z22, Z23)
	NEXT12
	JNZ  step12

done12:
	CMPB add+80(FP), $0
	OUT12(store12)
	MOVQ bp+48(FP), CX
	LEAQ (R13)(CX*4), R13
	DECQ panels+72(FP)
	JNZ  panel12
	VZEROUPPER
	RET

// VDPBF16PS adds to 16 float32 sums both products of 16 pairs of bfloat16. Go's assembler does not know it (EVEX.F32.0F38.W0 52 /r):
// p0 holds the upper bits of the registers' numbers, p1 the broadcast register, modrm the lower bits of sum and B register.
#define VDPBF16PS(p0, p1, modrm) \
	BYTE $0x62; BYTE p0; BYTE p1; BYTE $0x40; BYTE $0x52; BYTE modrm

// PAIR12 is FMA12 on pairs: sums m0 with Z24 and m1 with Z25.
#define PAIR12(addr, tmp, p0, p1, m0, m1) \
	VPBROADCASTD addr, tmp \
	VDPBF16PS(p0, p1, m0)  \
	VDPBF16PS(p0, p1, m1)

// func tilePairs12x32(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)
TEXT ·tilePairs12x32(SB), NOSPLIT, $0-81
	ARGS12

panelP:
	START12
	TESTQ CX, CX
	JZ    doneP

stepP:
	VMOVUPS (DI), Z24
	VMOVUPS 64(DI), Z25
	PAIR12((SI), Z26, $0x92, $0x2e, $0xc0, $0xc9)              // Z0, Z1
	PAIR12((SI)(R8*1), Z27, $0x92, $0x26, $0xd0, $0xd9)        // Z2, Z3
	PAIR12((SI)(R8*2), Z28, $0x92, $0x1e, $0xe0, $0xe9)        // Z4, Z5
	PAIR12((SI)(R9*1), Z29, $0x92, $0x16, $0xf0, $0xf9)        // Z6, Z7
	PAIR12((DX), Z26, $0x12, $0x2e, $0xc0, $0xc9)              // Z8, Z9
	PAIR12((DX)(R8*1), Z27, $0x12, $0x26, $0xd0, $0xd9)        // Z10, Z11
	PAIR12((DX)(R8*2), Z28, $0x12, $0x1e, $0xe0, $0xe9)        // Z12, Z13
	PAIR12((DX)(R9*1), Z29, $0x12, $0x16, $0xf0, $0xf9)        // Z14, Z15
	PAIR12((R10), Z26, $0x82, $0x2e, $0xc0, $0xc9)             // Z16, Z17
	PAIR12((R10)(R8*1), Z27, $0x82, $0x26, $0xd0, $0xd9)       // Z18, Z19
	PAIR12((R10)(R8*2), Z28, $0x82, $0x1e, $0xe0, $0xe9)       // Z20, Z21
	PAIR12((R10)(R9*1), Z29, $0x82, $0x16, $0xf0, $0xf9)       // Z22, Z23
	NEXT12
	JNZ  stepP

doneP:
	CMPB add+80(FP), $0
	OUT12(storeP)
	MOVQ bp+48(FP), CX
	LEAQ (R13)(CX*4), R13
	DECQ panels+72(FP)
	JNZ  panelP
	VZEROUPPER
	RET
