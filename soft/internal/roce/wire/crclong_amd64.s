#include "textflag.h"

// Z = what Z is worth further on in the message (Z5), and the 64 bytes there.
#define FOLD(Z, T, at) \
	VPCLMULQDQ $0x00, Z5, Z, T  \
	VPCLMULQDQ $0x11, Z5, Z, Z  \
	VPTERNLOGQ $0x96, at, T, Z

// func foldBlocks(out *[16]byte, k *foldConstants, r uint32, p *byte, n int)
TEXT ·foldBlocks(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), DI
	MOVQ k+8(FP), R8
	MOVL r+16(FP), AX
	MOVQ p+24(FP), SI
	MOVQ n+32(FP), CX
	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD AX, X4
	VPXORQ Z4, Z0, Z0
	VBROADCASTI32X4 (R8), Z5 // over 256 bytes
	ADDQ $256, SI
	SUBQ $256, CX
	JZ   join

loop:
	FOLD(Z0, Z6, 0(SI))
	FOLD(Z1, Z7, 64(SI))
	FOLD(Z2, Z8, 128(SI))
	FOLD(Z3, Z9, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ  loop

join:
	VBROADCASTI32X4 16(R8), Z5 // over 64 bytes
	FOLD(Z0, Z6, Z1)
	FOLD(Z0, Z6, Z2)
	FOLD(Z0, Z6, Z3)
	VMOVDQU64 32(R8), Z5 // over 48, 32 and 16 bytes, and nothing
	VPCLMULQDQ $0x00, Z5, Z0, Z6
	VPCLMULQDQ $0x11, Z5, Z0, Z7
	VPXORQ Z6, Z7, Z7
	VEXTRACTI32X4 $3, Z0, X1
	VEXTRACTI32X4 $1, Z7, X2
	VEXTRACTI32X4 $2, Z7, X3
	VPXOR X7, X1, X1
	VPXOR X2, X1, X1
	VPXOR X3, X1, X1
	VMOVDQU X1, (DI)
	VZEROUPPER
	RET
