// What the AVX2 kernels share.

// CONST makes a vector of eight equal float32, given by their bits.
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

// HSUM adds the eight lanes of y (x its low half) into x's lane 0, in the order of sum8.
#define HSUM(y, x, t) \
	VEXTRACTF128 $1, y, t  \
	VADDPS       t, x, x   \
	VPERMILPS    $0x4e, x, t \
	VADDPS       t, x, x   \
	VPERMILPS    $0xb1, x, t \
	VADDPS       t, x, x
