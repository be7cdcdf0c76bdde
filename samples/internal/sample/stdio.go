package sample

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/descriptor"
)

// paste exchanges descriptors on the standard files: ours are printed, the
// peer's are pasted. The requester's end is a line of its own.
type paste struct {
	session *Session
	lines   *lineReader
	met     bool
}

func newStdio(s *Session) *paste { return &paste{session: s, lines: readLines(s.files.in)} }

func (p *paste) String() string { return "standard input" }

func (p *paste) byHand() bool { return true }

func (p *paste) exchange(ctx context.Context, ours Descriptors) (theirs Descriptors, err error) {
	for _, d := range ours.Connections {
		p.session.Print("%s", strings.TrimSpace(descriptor.Armor(d)))
	}
	resource, resources := p.session.program.Memory, 0
	if resource.imports() {
		resources = 1
	}
	if d := *ours.resource(resource); d != nil {
		p.session.Print("%s", strings.TrimSpace(descriptor.Armor(d)))
	}
	p.session.Log.Info().Int("descriptors", len(ours.Connections)+resources).
		Msg("paste what " + p.session.program.Peer + " prints")
	place := theirs.resource(resource)
	for len(theirs.Connections) < len(ours.Connections) || (*place == nil && resources > 0) {
		kind, d, err := p.block(ctx)
		if err != nil {
			return theirs, err
		}
		switch {
		case kind == descriptor.Connection && len(theirs.Connections) < len(ours.Connections):
			theirs.Connections = append(theirs.Connections, d)
		case kind == resource.kind() && resources > 0 && *place == nil:
			*place = d
		case kind != descriptor.Connection && (kind != resource.kind() || resources == 0):
			return theirs, fmt.Errorf("a %v descriptor was pasted, which nothing here needs; paste what %s prints", kind, p.session.program.Peer)
		default:
			return theirs, fmt.Errorf("one %v descriptor too many was pasted; give both programs the same flags", kind)
		}
	}
	p.met = true
	return theirs, nil
}

// block returns the next armored descriptor; other lines are skipped.
func (p *paste) block(ctx context.Context) (descriptor.Kind, []byte, error) {
	var block strings.Builder
	for {
		line, err := p.lines.next(ctx)
		if err != nil {
			return 0, nil, err
		}
		if block.Len() == 0 && !strings.HasPrefix(line, "-----BEGIN ") {
			continue
		}
		if block.WriteString(line + "\n"); block.Len() > descriptor.MaxFile {
			return 0, nil, errors.New("what was pasted is too long for a descriptor")
		}
		if strings.HasPrefix(line, "-----END ") {
			kind, _, err := descriptor.Parse([]byte(block.String()))
			return kind, []byte(block.String()), err
		}
	}
}

func (p *paste) peerDone(ctx context.Context) error {
	p.session.Log.Info().Msgf("paste or type the last line of %s, %s or %s, when it has ended", p.session.program.Peer, succeeded, failed)
	for {
		line, err := p.lines.next(ctx)
		if err != nil {
			return err
		}
		if o := outcome(line); o == succeeded || o == failed {
			return o.err(p.session.program.Peer)
		}
	}
}

func (p *paste) close(ok bool) error {
	if p.met && p.session.program.Role == Requester {
		p.session.Print("%s", outcomeOf(ok))
	}
	return nil
}
