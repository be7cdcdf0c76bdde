package spin

import "golang.org/x/sys/unix"

// yieldProcessor lets threads of all programs have the processor, if they want it.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
