// The program boots the rig's guest for a person: with a shell, or with a script, whose exit
// status it returns. See scripts/rig.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/test/rig"
)

func main() {
	os.Exit(run())
}

func run() int {
	job := rig.Job{Files: map[string]string{}}
	flags := flag.NewFlagSet("rig", flag.ExitOnError)
	flags.IntVar(&job.MTU, "mtu", 1500, "MTU of the guest's Ethernet interface, in `bytes`")
	flags.DurationVar(&job.Timeout, "timeout", 2*time.Minute, "time limit for the script")
	flags.StringVar(&job.Results, "results", "", "`folder` that the guest mounts as /results")
	flags.Func("file", "`host[=guest]`: file or folder to copy into the guest, by default into /bin; may be repeated", func(s string) error {
		host, guest, ok := strings.Cut(s, "=")
		if !ok {
			guest = path.Join("/bin", filepath.Base(host))
		}
		job.Files[guest] = host
		return nil
	})
	missing := flags.Bool("missing", false, "list the Debian packages that the rig needs and that are not installed")
	prepare := flags.Bool("prepare", false, "only download the kernel and build the image")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: rig [flags] [script | -]\nWithout a script, the guest's console is yours; - reads one from standard input.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *missing:
		listMissing()
	case *prepare:
		err = rig.Prepare(ctx)
	case flags.NArg() == 0:
		err = rig.Shell(ctx, job)
	default:
		err = script(ctx, job, flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func script(ctx context.Context, job rig.Job, file string) error {
	read := func() ([]byte, error) { return os.ReadFile(file) }
	if file == "-" {
		read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
	}
	text, err := read()
	if err != nil {
		return err
	}
	job.Script = string(text)
	times, err := rig.Boot(ctx, job, os.Stdout)
	if err == nil || errors.Is(err, rig.ErrFailed) {
		fmt.Fprintln(os.Stderr, "guest:", times)
	}
	return err
}

func listMissing() {
	seen := map[string]bool{}
	for _, need := range rig.Missing() {
		if !seen[need.Package] {
			fmt.Println(need.Package)
		}
		seen[need.Package] = true
	}
}
