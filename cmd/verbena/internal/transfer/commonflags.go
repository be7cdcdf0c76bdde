package transfer

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/progress"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/internal/terminal"
	help "github.com/verbena-rdma/verbena/internal/usage"
)

// common holds the flags that both ends of a transfer have.
type common struct {
	device     string
	secret     string
	secretFile string
	json       bool
	verbose    bool
	quiet      bool
}

// secretVariable is the environment variable that holds the secret if no flag gives it. Other
// users cannot see it, unlike a command line.
const secretVariable = "VERBENA_SECRET"

// flags defines the flags of both commands.
func (common *common) flags(name string) *flag.FlagSet {
	f := help.NewFlags(name)
	f.StringVar(&common.device, "d", "", "`device`, such as soft-eth0 or mlx5_0 (default: the one by which the system reaches the address)")
	f.StringVar(&common.secret, "secret", "", "shared `secret`, the same at both ends; other users of this machine can see the command line: better use -secret-file or $"+secretVariable)
	f.StringVar(&common.secretFile, "secret-file", "", "`file` whose first line is the secret")
	f.BoolVar(&common.json, "json", false, "print JSON objects, one per line, on standard output")
	f.BoolVar(&common.verbose, "v", false, "print every file")
	f.BoolVar(&common.quiet, "q", false, "print only failures")
	return f
}

// parse reads flags and other arguments in any order. After "--" nothing is a flag. An empty
// argument usually comes from a shell variable that is not set, so parse refuses it where it
// would change the meaning of the command.
func (c *invocation) parse(p *help.Page) (rest []string, err error) {
	if rest, err = p.ParseMixed(c.args, c.out); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, usage(err)
	}
	for _, arg := range rest {
		if arg == "" {
			return nil, usage(errors.New("an argument is empty: is a shell variable not set? For the working directory, write \".\""))
		}
	}
	p.Flags.Visit(func(set *flag.Flag) {
		switch set.Name {
		case "d", "l", "secret", "secret-file":
			if set.Value.String() == "" {
				err = usage(fmt.Errorf("the value of -%s is empty: is a shell variable not set? Omit the flag to use its default", set.Name))
			}
		}
	})
	return rest, err
}

// readSecret returns the secret from the flags or the environment, or nil.
func (c *common) readSecret() ([]byte, error) {
	s := c.secret
	switch {
	case s != "" && c.secretFile != "":
		return nil, usage(errors.New("-secret and -secret-file exclude each other"))
	case c.secretFile != "":
		b, err := os.ReadFile(c.secretFile)
		if err != nil {
			return nil, usage(err)
		}
		s, _, _ = strings.Cut(string(b), "\n")
		s = strings.TrimSuffix(s, "\r")
		if s == "" {
			return nil, usage(fmt.Errorf("the first line of %s is empty; it must be the secret", c.secretFile))
		}
	case s == "":
		s = os.Getenv(secretVariable)
	}
	if s == "" {
		return nil, nil
	}
	if len(s) < session.MinSecret {
		return nil, usage(fmt.Errorf("the secret has %d bytes; it must have at least %d, because short secrets can be guessed by anyone who records network traffic; verbena receive -new-secret makes a good one", len(s), session.MinSecret))
	}
	return []byte(s), nil
}

// printer returns the printer of the program.
func (c *invocation) printer(f *common) *progress.Printer {
	style := progress.Lines
	if terminal.Is(c.err) {
		style = progress.Bar
	}
	if f.json {
		style = progress.JSON
	}
	return progress.New("verbena "+c.name, c.out, c.err, style, f.verbose, f.quiet)
}

// report prints the error of a command, unless it has been printed.
func report(p *progress.Printer, err error) {
	var exit *exitError
	if err == nil || errors.Is(err, flag.ErrHelp) || errors.As(err, &exit) && exit.printed {
		return
	}
	fields := map[string]any{"reason": oneLine(err)}
	var fault *session.Fault
	if errors.As(err, &fault) {
		fields["code"] = fault.Code.String()
	}
	p.Warn("error", fields, "%s", oneLine(err))
}

// bytesFlag is a flag for a number of bytes.
type bytesFlag int64

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return progress.Bytes(int64(*b))
}

func (b *bytesFlag) Set(s string) error {
	n, err := progress.ParseBytes(s)
	*b = bytesFlag(n)
	return err
}
