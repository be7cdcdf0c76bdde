package syncevent

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// ContextConfig configures a Context. The zero value is usable.
type ContextConfig struct {
	// Name appears in errors and logs. Empty: "syncevent".
	Name string
	// Engine drives the context; NewContext connects the two. Nil: call Engine.Connect later.
	Engine *pe.Engine
}

// Context is a context whose tasks work on any number of sync events. An engine drives it
// (package pe).
type Context struct {
	*pe.Core
	control backend.Control
	tasks   []*Task // of all pools

	submitted fifo.List[*Task] // gets, sets and additions, not done yet
	stopping  bool

	mu    sync.Mutex       // taken with the lock of an event held
	ready fifo.List[*Task] // waits that are over, and not reported yet
}

// NewContext makes a context. Its errors are those of pe.Engine.Connect.
func NewContext(cfg ContextConfig) (*Context, error) {
	if cfg.Name == "" {
		cfg.Name = "syncevent"
	}
	c := &Context{}
	c.Core, c.control = backend.New(cfg.Name, asBackend{c})
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("syncevent: make a context: %w", err)
		}
	}
	return c, nil
}
