#include "textflag.h"

// func clockGettime() uintptr
TEXT ·clockGettime(SB), NOSPLIT, $0-8
	LEAQ	gettime<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// int gettime(clockid_t DI, struct timespec *SI), with the calling convention of C.
TEXT gettime<>(SB), NOSPLIT|NOFRAME, $0
	MOVL	$228, AX // clock_gettime
	SYSCALL
	TESTL	DI, DI // CLOCK_REALTIME
	JNE	done
	MOVQ	·clockOffset(SB), CX
	ADDQ	CX, 0(SI)
done:
	RET
