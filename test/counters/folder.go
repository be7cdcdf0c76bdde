package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
)

func (p *program) file(ours bool) string {
	name := "second"
	if ours == p.first {
		name = "first"
	}
	return filepath.Join(p.dir, name)
}

func (p *program) write(descriptors [][]byte) error {
	var text strings.Builder
	for _, d := range descriptors {
		text.WriteString(descriptor.Armor(d))
	}
	return descriptor.WriteFile(p.file(true), []byte(text.String()))
}

// read waits for the peer's n descriptors, and reads them.
func (p *program) read(n int) (list [][]byte, err error) {
	text, err := p.await(p.file(false))
	if err != nil {
		return nil, err
	}
	scanner := descriptor.NewScanner(bytes.NewReader(text))
	for range n {
		_, d, err := scanner.Next()
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// meet reports that this program has finished, and waits until the peer reports the same.
func (p *program) meet() error {
	if err := descriptor.WriteFile(p.file(true)+".done", []byte("done\n")); err != nil {
		return err
	}
	_, err := p.await(p.file(false) + ".done")
	return err
}

// await waits for a file, and reads it.
func (p *program) await(path string) ([]byte, error) {
	for {
		b, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-p.ctx.Done():
			return nil, context.Cause(p.ctx)
		}
	}
}
