package scp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// verbenaSend is verbena send, with a new receiver for each file.
type verbenaSend struct{ binary string }

func (v *verbenaSend) send(ctx context.Context, file, folder string) (f figures, err error) {
	receiver := exec.CommandContext(ctx, v.binary, "receive", "-once", "-json", "-l", "127.0.0.1:0", folder)
	var failure bytes.Buffer
	receiver.Stderr = &failure
	events, err := receiver.StdoutPipe()
	if err != nil {
		return f, err
	}
	if err := receiver.Start(); err != nil {
		return f, err
	}
	lines := bufio.NewReader(events)
	address, err := listening(lines)
	if err == nil {
		f, err = timed(exec.CommandContext(ctx, v.binary, "send", "-q", file, address))
	}
	if err != nil {
		_ = receiver.Process.Kill()
	}
	_, copyErr := io.Copy(io.Discard, lines) // read to the end before Wait
	waitErr := receiver.Wait()
	if err = errors.Join(err, copyErr); err == nil {
		err = waitErr
	}
	if err != nil {
		return f, fmt.Errorf("%w\n%s", err, &failure)
	}
	f.receiver = cpuTime(receiver.ProcessState)
	return f, nil
}

// listening waits until the receiver listens, and returns its address.
func listening(lines *bufio.Reader) (string, error) {
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return "", fmt.Errorf("the receiver ended before it listened: %w", err)
		}
		var event struct{ Event, Address string }
		if err := json.Unmarshal(line, &event); err != nil {
			return "", fmt.Errorf("parse the line %q of the receiver: %w", line, err)
		}
		if event.Event == "listening" {
			return event.Address, nil
		}
	}
}

// timed runs a sender, and measures it.
func timed(sender *exec.Cmd) (f figures, err error) {
	began := time.Now()
	out, err := sender.CombinedOutput()
	f.elapsed = time.Since(began)
	if err != nil {
		return f, fmt.Errorf("%w\n%s", err, out)
	}
	f.sender = cpuTime(sender.ProcessState)
	return f, nil
}

func cpuTime(p *os.ProcessState) time.Duration { return p.UserTime() + p.SystemTime() }
