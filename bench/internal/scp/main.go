// Package scp compares verbena send with scp: one file over the loopback interface,
// alternately, several times. It starts both servers itself, verbena receive and an sshd with
// its own keys on a free port, and removes everything at the end. make bench-scp runs it.
//
//	go run ./bench scp -mib 2048 -rounds 5
//
// The measured time is that of the sender, from its start to its end; the receiver already
// listens. Each received file is compared with the original. It prints figures and asserts
// nothing about them.
package scp

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

type options struct {
	bytes   int64
	rounds  int
	folder  string
	cipher  string
	verbose bool
}

// Run runs bench scp.
func Run(ctx context.Context, args []string) error {
	o := options{}
	f := flag.NewFlagSet("bench scp", flag.ExitOnError)
	mib := f.Int64("mib", 2048, "size of the file in `MiB`; the folder needs space for two copies")
	f.IntVar(&o.rounds, "rounds", 5, "number of times each program sends it")
	f.StringVar(&o.folder, "dir", "", "`folder` for the files (default /dev/shm, memory, where there is one)")
	f.StringVar(&o.cipher, "c", "", "`cipher` for scp's flag -c (default: scp's own)")
	f.BoolVar(&o.verbose, "v", false, "write each figure to standard error as it comes")
	_ = f.Parse(args) // exits on an error
	if f.NArg() > 0 || *mib < 1 || *mib > 1<<20 || o.rounds < 1 {
		return errors.New("-mib must be 1 to 1048576, -rounds must be positive, and no arguments are allowed; see -help")
	}
	o.bytes = *mib << 20
	return run(ctx, o)
}

// contender is one of the two programs.
type contender interface {
	// send sends a file to a folder.
	send(ctx context.Context, file, folder string) (figures, error)
}

func run(ctx context.Context, o options) (err error) {
	if o.folder == "" {
		if _, err := os.Stat("/dev/shm"); err == nil {
			o.folder = "/dev/shm"
		}
	}
	temp, err := os.MkdirTemp(o.folder, "verbena-scp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	binary := filepath.Join(temp, "verbena")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/verbena-rdma/verbena/cmd/verbena")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build verbena: %w\n%s", err, out)
	}
	ssh, err := startSSHD(ctx, filepath.Join(temp, "ssh"), o.cipher)
	if err != nil {
		return err
	}
	file := filepath.Join(temp, "file")
	results, err := measure(ctx, o, file, filepath.Join(temp, "arrived"), [2]contender{&verbenaSend{binary}, ssh})
	stopErr := ssh.stop()
	if err != nil {
		return err
	}
	if stopErr != nil {
		return stopErr
	}
	_, err = fmt.Print(table(o.bytes, results, ssh.serverTime/time.Duration(o.rounds)))
	return err
}

// measure measures both programs alternately. They also alternate in going first.
func measure(ctx context.Context, o options, file, folder string, contenders [2]contender) (results [2][]figures, err error) {
	want, err := writeFile(file, o.bytes)
	if err != nil {
		return results, err
	}
	for round := range o.rounds {
		for i := range contenders {
			which := (i + round) % len(contenders)
			if err := os.Mkdir(folder, 0o700); err != nil {
				return results, err
			}
			f, err := contenders[which].send(ctx, file, folder)
			if err != nil {
				return results, fmt.Errorf("round %d: %s: %w", round+1, names[which], err)
			}
			got, err := hashFile(filepath.Join(folder, filepath.Base(file)))
			if err != nil {
				return results, err
			}
			if got != want {
				return results, fmt.Errorf("round %d: %s: the received file differs from the sent file", round+1, names[which])
			}
			if err := os.RemoveAll(folder); err != nil {
				return results, err
			}
			results[which] = append(results[which], f)
			if o.verbose {
				fmt.Fprintf(os.Stderr, "round %d: %-12s %.2f s\n", round+1, names[which], f.elapsed.Seconds())
			}
		}
	}
	return results, nil
}

type hash [sha256.Size]byte

// writeFile makes an incompressible file.
func writeFile(name string, bytes int64) (sum hash, err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{}), bytes)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return hash(h.Sum(nil)), err
}

func hashFile(name string) (sum hash, err error) {
	f, err := os.Open(name)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hash(h.Sum(nil)), err
}
