package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/progress"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/session"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
	help "github.com/verbena-rdma/verbena/internal/usage"
)

// sendFlags holds the flags of verbena send.
type sendFlags struct {
	common
	text  string
	limit bytesFlag
	retry time.Duration
	wait  time.Duration
	id    string
}

// SendPage describes verbena send.
func SendPage() *help.Page { return (&sendFlags{}).page() }

func (o *sendFlags) page() *help.Page {
	f := o.flags("verbena send")
	f.StringVar(&o.text, "m", "", "send this `text` instead of files")
	f.Var(&o.limit, "limit", "limit in `bytes` per second, such as 10M or 64MiB")
	f.DurationVar(&o.retry, "retry", time.Minute, "how long to try to reconnect and continue after the connection was lost")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the receiver to start")
	f.StringVar(&o.id, "id", "", "`name` of the sender for the receiver (default USER@HOST)")
	return &help.Page{Name: "verbena send", About: "send files, directories or a message",
		Forms: []string{"[flags] FILE... HOST:PORT", "[flags] -m TEXT HOST:PORT"},
		Text:  "Sends files and directories, or a message, to verbena receive at HOST.", Flags: f}
}

func send(ctx context.Context, c *invocation) error {
	var o sendFlags
	page := o.page()
	args, err := c.parse(page)
	p := c.printer(&o.common)
	if err == nil {
		err = o.run(ctx, p, isSet(page.Flags, "m"), args)
	}
	p.End()
	report(p, err)
	return err
}

func (o *sendFlags) run(ctx context.Context, p *progress.Printer, isText bool, args []string) (err error) {
	want := 2
	if isText {
		want = 1
	}
	switch {
	case len(args) < want:
		return usage(errors.New("give the files to send, then the receiver as HOST:PORT"))
	case isText && len(args) > 1:
		return usage(errors.New("give either -m TEXT or files, then the receiver as HOST:PORT"))
	case isText && len(o.text) > proto.MaxText:
		return usage(fmt.Errorf("the text has %d bytes, the limit is %d: send it as a file", len(o.text), proto.MaxText))
	case len(o.id) > proto.MaxID:
		return usage(fmt.Errorf("the ID has %d bytes; the limit is %d", len(o.id), proto.MaxID))
	case o.limit > 0 && o.limit < minLimit:
		return usage(fmt.Errorf("-limit is %v per second; it must be at least %v", &o.limit, progress.Bytes(minLimit)))
	}
	host, port, err := splitAddress(args[len(args)-1])
	if err != nil {
		return usage(err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	cfg := session.SenderConfig{ID: o.id, Limit: session.NewLimiter(int64(o.limit)), Events: p}
	if cfg.Secret, err = o.readSecret(); err != nil {
		return err
	}
	if isText {
		cfg.Text = &o.text
	} else if cfg.Sources, err = tree.Sources(args[:len(args)-1]); err != nil {
		return usage(err)
	}
	if cfg.ID == "" {
		cfg.ID = proto.Cut(defaultID(), proto.MaxID)
	}
	if o.device == "" {
		if o.device, _, err = deviceTo(ctx, host); err != nil {
			return &exitError{code: exitConnection, err: err}
		}
	}
	s, err := openEndpoint(ctx, o.device, 2, true) // room for the next connection while the last one ends
	if err != nil {
		return err
	}
	defer closeWith(&err, s.close)
	ctx = s.ctx

	counting, stop := context.WithCancel(ctx)
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		if total, err := tree.Size(counting, cfg.Sources); err == nil {
			p.Total(total)
		}
	}()
	defer func() { stop(); <-counted }()

	began := time.Now()
	sum, err := o.transfer(ctx, s, session.NewSender(cfg), p, hostPort(host, port))
	stop()
	<-counted
	p.End()
	if err != nil {
		return err
	}
	o.done(p, sum, time.Since(began))
	return partial(sum)
}

// minLimit is the lowest rate: a block must arrive before the receiver gives up waiting.
const minLimit = 16 << 10

// transfer sends over one connection after another, until everything has arrived.
func (o *sendFlags) transfer(ctx context.Context, s *endpoint, sender *session.Sender, p *progress.Printer, addr string) (session.Summary, error) {
	patience := o.wait
	for again := false; ; again = true {
		l, err := s.dial(ctx, addr, patience)
		if err != nil {
			if again && ctx.Err() == nil {
				err = fmt.Errorf("the connection was lost, and could not be restored within %v (-retry); run the same command again to continue: %w", o.retry, err)
			}
			return session.Summary{}, err
		}
		if !again {
			p.Note("connected", map[string]any{"address": addr, "device": s.dev.Name()}, "connected to %s by %s", addr, s.dev.Name())
		}
		began := time.Now()
		sum, err := sender.Run(ctx, l)
		closeLink(l)
		if err == nil || ctx.Err() != nil || !errors.Is(err, link.ErrBroken) {
			return sum, err
		}
		// Give up if this connection has moved no data, and none has for o.retry.
		moved := p.LastMoved()
		if moved.Before(began) && again && time.Since(moved) > o.retry || o.retry <= 0 {
			return sum, err
		}
		patience = max(o.retry, time.Second)
		p.Note("lost", map[string]any{"reason": oneLine(err)}, "%s; connecting again", oneLine(err))
		p.Restart()
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return sum, context.Cause(ctx)
		}
	}
}

func (o *sendFlags) done(p *progress.Printer, sum session.Summary, took time.Duration) {
	fields := map[string]any{"entries": sum.Entries, "had": sum.Had, "failed": sum.Failed, "bytes": sum.Bytes,
		"seconds": took.Seconds(), "id": sum.ID, "key": sum.Key}
	if sum.Text {
		p.Note("done", fields, "the message has arrived; key %s", tree.Show(sum.Key))
		return
	}
	text := describe(sum, took)
	p.Note("done", fields, "%s; key %s", text, tree.Show(sum.Key))
}

// describe describes the outcome of a transfer.
func describe(sum session.Summary, took time.Duration) string {
	text := fmt.Sprintf("%d entries, %s in %.1f s (%s/s)", sum.Entries, progress.Bytes(sum.Bytes), took.Seconds(),
		progress.Bytes(int64(float64(sum.Bytes)/max(took.Seconds(), 0.001))))
	if sum.Had > 0 {
		text += fmt.Sprintf(", %d of them existed already", sum.Had)
	}
	if sum.Failed > 0 {
		text += fmt.Sprintf("; %d FAILED", sum.Failed)
	}
	return text
}

// defaultID is USER@HOST.
func defaultID() string {
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
