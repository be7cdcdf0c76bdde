package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/verbena-rdma/verbena/descriptor"
)

// process is the second process, and the pipes to it.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	scan  *descriptor.Scanner
}

func startPeer(o options) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	words := append(strings.Fields(o.prefix), self, "-d", o.device, "-size", fmt.Sprint(o.size), "-window", fmt.Sprint(o.window), "-mtu", fmt.Sprint(o.mtu), "-peer", o.run, "-style", o.style, fmt.Sprintf("-counters=%v", o.counters))
	p := &process{cmd: exec.Command(words[0], words[1:]...)}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.scan = descriptor.NewScanner(stdout)
	return p, p.cmd.Start()
}

// stop has the peer end, by closing its standard input, and waits for it.
func (p *process) stop() error {
	err := p.stdin.Close()
	if e := p.cmd.Wait(); e != nil {
		err = fmt.Errorf("the second process: %w", e)
	}
	return err
}

// exchange sends our descriptors and reads the peer's.
func exchange(w io.Writer, scan *descriptor.Scanner, conn, mem []byte) (theirConn, theirMem []byte, err error) {
	if _, err = io.WriteString(w, descriptor.Armor(conn)+descriptor.Armor(mem)); err != nil {
		return nil, nil, err
	}
	read := func(want descriptor.Kind) []byte {
		if err != nil {
			return nil
		}
		var kind descriptor.Kind
		var b []byte
		if kind, b, err = scan.Next(); err != nil {
			err = fmt.Errorf("read the peer's descriptor: %w", err)
		} else if kind != want {
			err = fmt.Errorf("the peer sent a descriptor of a %v, not of a %v", kind, want)
		}
		return b
	}
	theirConn = read(descriptor.Connection)
	theirMem = read(descriptor.MemoryMap)
	return theirConn, theirMem, err
}

// serve is the frame of the second process: it connects, does its part, and ends
// when its standard input does.
func serve(o options, tasks, memory int, part func(ctx context.Context, e *endpoint) error) error {
	e, conn, mem, err := open(o, tasks, memory)
	if err != nil {
		return err
	}
	scan := descriptor.NewScanner(os.Stdin)
	theirConn, theirMem, err := exchange(os.Stdout, scan, conn, mem)
	if err == nil {
		err = e.connect(theirConn, theirMem)
	}
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, _, _ = scan.Next()
			cancel()
		}()
		if err = part(ctx, e); errors.Is(err, context.Canceled) {
			err = nil
		}
		cancel()
	}
	return errors.Join(err, e.close())
}

// withPeer is the frame of the first process.
func withPeer(o options, tasks, memory int, part func(e *endpoint) (string, error)) (figures string, err error) {
	p, err := startPeer(o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	e, conn, mem, err := open(o, tasks, memory)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	theirConn, theirMem, err := exchange(p.stdin, p.scan, conn, mem)
	if err != nil {
		return "", err
	}
	if err := e.connect(theirConn, theirMem); err != nil {
		return "", err
	}
	if err := waitRunning(e); err != nil {
		return "", err
	}
	return part(e)
}
