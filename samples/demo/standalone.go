package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// killDelay is how long a program may take to stop after a signal.
const killDelay = 5 * time.Second

// standalone returns the programs that have no peer and show how tasks are driven.
func standalone() []string {
	list := []string{"pe_polling"}
	if runtime.GOOS == "linux" {
		list = append(list, "pe_event") // epoll
	}
	return append(list, "pe_reactive", "pe_multi_context", "pe_async_stop", "pe_single_task_comp_cb",
		"pe_task_error", "pe_task_resubmit", "pe_task_try_submit", "graph", "sync_event_local")
}

// runStandalone runs a program, and fails if the program fails.
func runStandalone(ctx context.Context, bin, dev, name string) (pair.Side, time.Duration, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), "-d", dev, "-timeout", patience)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	begin := time.Now()
	err := cmd.Run()
	elapsed := time.Since(begin)
	side := pair.Side{Command: cmd.Args, Stdout: stdout.String(), Stderr: stderr.String(), Code: -1}
	if cmd.ProcessState != nil {
		side.Code = cmd.ProcessState.ExitCode()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return side, elapsed, err
}
