package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/verbena-rdma/verbena/internal/output"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// Main runs a program and exits. The context passed to run ends with Ctrl-C or SIGTERM; a
// second signal ends the program at once.
func Main(p Program, run func(ctx context.Context, o *Options) error) {
	os.Exit(execute(p, run, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(p Program, run func(ctx context.Context, o *Options) error, args []string, out, errs io.Writer) int {
	var o *Options
	return sample.Execute(p.Name, out, errs, func(stdout *output.Writer) (err error) {
		o, err = parse(p, args, stdout, errs)
		return err
	}, func(ctx context.Context, stdout *output.Writer) error {
		return errors.Join(run(ctx, o), stdout.Err())
	})
}

// Close calls closer and joins its error into *err, for use with defer.
func Close(err *error, closer func() error) { sample.Close(err, closer) }

// say prints a line for the user on standard error, separate from the results.
func (o *Options) say(format string, args ...any) {
	_, _ = fmt.Fprintf(o.err, o.program.Name+": "+format+"\n", args...)
}
