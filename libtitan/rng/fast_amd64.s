#include "textflag.h"
#include "go_asm.h"

// Four 64-bit lanes of one value.
#define LANES(name, value) \
	DATA name<>+0(SB)/8, value; \
	DATA name<>+8(SB)/8, value; \
	DATA name<>+16(SB)/8, value; \
	DATA name<>+24(SB)/8, value; \
	GLOBL name<>(SB), RODATA|NOPTR, $32

LANES(m0, $0xd2511f53)
LANES(m1, $0xcd9e8d57)
LANES(w0, $0x9e3779b9)
LANES(w1, $0xbb67ae85)
LANES(four, $4)
LANES(eight, $8)
LANES(one, $0x3ff0000000000000)
LANES(magnitude, $0x7fffffff7fffffff)
LANES(sign, $0x8000000080000000)
LANES(base, $0x3ff0)
LANES(last, $511)
LANES(field, $0x0000ffffffffffff)

DATA ramp<>+0(SB)/8, $0
DATA ramp<>+8(SB)/8, $1
DATA ramp<>+16(SB)/8, $2
DATA ramp<>+24(SB)/8, $3
GLOBL ramp<>(SB), RODATA|NOPTR, $32

// One Philox round of four blocks, a word in the low half of each 64-bit lane. VPMULUDQ reads low halves alone, so
// what gathers in the high halves does no harm. The words move round by one register: c1, q, c3, p.
#define ROUND(c0, c1, c2, c3, t) \
	VPMULUDQ Y15, c0, c0; \
	VPMULUDQ Y14, c2, c2; \
	VPXOR Y8, c1, c1; \
	VPSRLQ $32, c2, t; \
	VPXOR t, c1, c1; \
	VPXOR Y9, c3, c3; \
	VPSRLQ $32, c0, t; \
	VPXOR t, c3, c3

#define TWICE(a, b, c, d, e, f, g, h) \
	ROUND(a, b, c, d, Y10); \
	ROUND(e, f, g, h, Y11); \
	VPADDD w0<>(SB), Y8, Y8; \
	VPADDD w1<>(SB), Y9, Y9

// Stores four blocks whose words are the low halves of c0, c1, c2, c3.
#define STORE(c0, c1, c2, c3, at) \
	VPSLLQ $32, c1, c1; \
	VPBLENDD $0xaa, c1, c0, c0; \
	VPSLLQ $32, c3, c3; \
	VPBLENDD $0xaa, c3, c2, c2; \
	VPUNPCKLQDQ c2, c0, c1; \
	VPUNPCKHQDQ c2, c0, c3; \
	VPERM2I128 $0x20, c3, c1, c0; \
	VPERM2I128 $0x31, c3, c1, c2; \
	VMOVDQU c0, at+0(DI); \
	VMOVDQU c2, at+32(DI)

// func philoxAVX2(dst *uint32, n int, i, name, seed uint64)
TEXT ·philoxAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ n+8(FP), CX
	VPBROADCASTQ i+16(FP), Y13
	VPADDQ ramp<>(SB), Y13, Y13
	VPBROADCASTQ name+24(FP), Y12
	VMOVDQU m0<>(SB), Y15
	VMOVDQU m1<>(SB), Y14

blocks:
	VPBROADCASTQ seed+32(FP), Y8
	VPSRLQ $32, Y8, Y9
	VMOVDQA Y13, Y0
	VPSRLQ $32, Y0, Y1
	VMOVDQA Y12, Y2
	VPSRLQ $32, Y12, Y3
	VPADDQ four<>(SB), Y13, Y4
	VPSRLQ $32, Y4, Y5
	VMOVDQA Y12, Y6
	VMOVDQA Y3, Y7
	VPADDQ eight<>(SB), Y13, Y13

	TWICE(Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7)
	TWICE(Y1, Y2, Y3, Y0, Y5, Y6, Y7, Y4)
	TWICE(Y2, Y3, Y0, Y1, Y6, Y7, Y4, Y5)
	TWICE(Y3, Y0, Y1, Y2, Y7, Y4, Y5, Y6)
	TWICE(Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7)
	TWICE(Y1, Y2, Y3, Y0, Y5, Y6, Y7, Y4)
	TWICE(Y2, Y3, Y0, Y1, Y6, Y7, Y4, Y5)
	TWICE(Y3, Y0, Y1, Y2, Y7, Y4, Y5, Y6)
	TWICE(Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7)
	TWICE(Y1, Y2, Y3, Y0, Y5, Y6, Y7, Y4)

	STORE(Y2, Y3, Y0, Y1, 0)
	STORE(Y6, Y7, Y4, Y5, 64)
	ADDQ $128, DI
	SUBQ $8, CX
	JNZ blocks
	VZEROUPPER
	RET

// func valuesAVX2(dst *float32, words *uint32, n int, t *segments, d *sampler)
TEXT ·valuesAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ words+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ t+24(FP), DX
	MOVQ d+32(FP), BX
	VMOVUPD one<>(SB), Y15
	VBROADCASTSD sampler_scale(BX), Y14
	VBROADCASTSD sampler_shift(BX), Y13
	VBROADCASTSD sampler_std(BX), Y12
	VBROADCASTSS sampler_cut(BX), X11

values:
	VMOVDQU (SI), X0
	VPAND magnitude<>(SB), X0, X1
	VCVTDQ2PD X1, Y1
	VADDPD Y1, Y1, Y1
	VADDPD Y15, Y1, Y1
	VMULPD Y14, Y1, Y1
	VADDPD Y13, Y1, Y1 // v

	VPSRLQ $48, Y1, Y2
	VPSUBQ base<>(SB), Y2, Y2
	VPAND last<>(SB), Y2, Y2
	VPSLLQ $6, Y2, Y2 // offsets of the segments
	VPAND field<>(SB), Y1, Y1
	VPOR Y15, Y1, Y1
	VSUBPD Y15, Y1, Y1 // t

	VMOVQ X2, R8
	VPEXTRQ $1, X2, R9
	VEXTRACTI128 $1, Y2, X2
	VMOVQ X2, R10
	VPEXTRQ $1, X2, R11

	VMOVUPD (DX)(R8*1), Y3
	VMOVUPD (DX)(R9*1), Y4
	VMOVUPD (DX)(R10*1), Y5
	VMOVUPD (DX)(R11*1), Y6
	VMOVSD 32(DX)(R8*1), X7
	VMOVHPD 32(DX)(R9*1), X7, X7
	VMOVSD 32(DX)(R10*1), X8
	VMOVHPD 32(DX)(R11*1), X8, X8
	VINSERTF128 $1, X8, Y7, Y7 // c4 of the four values

	VUNPCKLPD Y4, Y3, Y8
	VUNPCKHPD Y4, Y3, Y9
	VUNPCKLPD Y6, Y5, Y10
	VUNPCKHPD Y6, Y5, Y2
	VPERM2F128 $0x20, Y10, Y8, Y3 // c0
	VPERM2F128 $0x31, Y10, Y8, Y5 // c2
	VPERM2F128 $0x20, Y2, Y9, Y4  // c1
	VPERM2F128 $0x31, Y2, Y9, Y6  // c3

	VMULPD Y1, Y7, Y7
	VADDPD Y6, Y7, Y7
	VMULPD Y1, Y7, Y7
	VADDPD Y5, Y7, Y7
	VMULPD Y1, Y7, Y7
	VADDPD Y4, Y7, Y7
	VMULPD Y1, Y7, Y7
	VADDPD Y3, Y7, Y7

	VMULPD Y12, Y7, Y7
	VCVTPD2PSY Y7, X7
	VMINPS X11, X7, X7
	VPAND sign<>(SB), X0, X0
	VPOR X0, X7, X7
	VMOVUPS X7, (DI)
	ADDQ $16, SI
	ADDQ $16, DI
	SUBQ $4, CX
	JNZ values
	VZEROUPPER
	RET
