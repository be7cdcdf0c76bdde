package sample

import (
	"context"
	"os"

	"github.com/rs/zerolog"
)

// Open makes the session of a program that has flags of its own: of p it takes the
// names, the role and what its descriptors are, and of way what -oob takes. The second
// result ends the session: it reports to the peer whether the program has succeeded.
func Open(ctx context.Context, p Program, way string, log zerolog.Logger) (*Session, func(ok bool) error, error) {
	s := &Session{Log: log, program: p, files: stdio{os.Stdin, os.Stdout, os.Stderr}}
	var err error
	if s.channel, err = (&route{oob: way}).open(newFlags(p.Name), s); err != nil {
		return nil, nil, err
	}
	s.begin(ctx)
	return s, s.end, nil
}
