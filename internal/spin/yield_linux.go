package spin

import "golang.org/x/sys/unix"

// yieldProcessor lets threads of other programs run, if they are ready.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
