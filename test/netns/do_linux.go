package netns

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls a function on a thread in the namespace. Sockets that the function makes stay there.
func (n Namespace) Do(f func() error) error { return In("/proc/"+n.String()+"/ns/net", f) }

// In calls a function on a thread in the namespace of a file.
func In(name string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		done <- func() error {
			file, err := os.Open(name)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}
