// Package transfer implements the commands verbena send and verbena receive: their flags,
// output and exit codes. docs/send.md describes them for users.
package transfer

import (
	"context"
	"errors"
	"io"
	"strings"
)

// invocation is one run of a command.
type invocation struct {
	name     string
	args     []string
	out, err io.Writer
}

// Send runs verbena send, and returns its exit code.
func Send(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return codeOf(ctx, send(ctx, &invocation{"send", args, stdout, stderr}))
}

// Receive runs verbena receive, and returns its exit code.
func Receive(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return codeOf(ctx, receive(ctx, &invocation{"receive", args, stdout, stderr}))
}

// oneLine makes an error one line.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// closeWith joins the error of closer into *err, for use with defer.
func closeWith(err *error, closer func() error) { *err = errors.Join(*err, closer()) }
