#include "textflag.h"
#include "vec_amd64.h"

// AVX2 kernels that move and convert.

CONST(round, $0x7fff)
CONST(onebit, $1)
CONST(quiet, $0x40)

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
// Where rows lie far apart each one is a cache miss: a tight loop and a look eight rows ahead keep many in flight.
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
	PREFETCHT0 (SI)(R9*8)

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

	// Rows lie too far apart for the CPU to guess: ask for the fourth from here, DX strips of R10 floats.
	LEAQ  (SI)(R9*4), R12
	MOVQ  DX, R11
	IMULQ R10, R11
	LEAQ  (R12)(R11*4), R11

stripahead:
	PREFETCHT0 (R12)
	ADDQ $64, R12
	CMPQ R12, R11
	JLT  stripahead

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
