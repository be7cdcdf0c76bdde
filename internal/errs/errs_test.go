package errs_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/graph"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// sentinels are those of all public packages. TestTableIsComplete finds the ones
// that are missing here.
var sentinels = map[string]map[string]error{
	"await": {
		"ErrInvalid": await.ErrInvalid, "ErrPending": await.ErrPending, "ErrPanicked": await.ErrPanicked,
		"ErrStopped": await.ErrStopped, "ErrBusy": await.ErrBusy, "ErrClosed": await.ErrClosed,
	},
	"bufinv": {
		"ErrInvalid": bufinv.ErrInvalid, "ErrRange": bufinv.ErrRange, "ErrExhausted": bufinv.ErrExhausted,
		"ErrFreed": bufinv.ErrFreed, "ErrInUse": bufinv.ErrInUse, "ErrClosed": bufinv.ErrClosed,
		"ErrChained": bufinv.ErrChained,
	},
	"descriptor": {
		"ErrTruncated": descriptor.ErrTruncated, "ErrTrailing": descriptor.ErrTrailing,
		"ErrVersion": descriptor.ErrVersion, "ErrKind": descriptor.ErrKind, "ErrChecksum": descriptor.ErrChecksum,
		"ErrFormat": descriptor.ErrFormat, "ErrTooBig": descriptor.ErrTooBig, "ErrFile": descriptor.ErrFile,
	},
	"dma": {
		"ErrInvalid": dma.ErrInvalid, "ErrRange": dma.ErrRange, "ErrNotSupported": dma.ErrNotSupported,
		"ErrGID": dma.ErrGID, "ErrNoData": dma.ErrNoData, "ErrDevice": dma.ErrDevice, "ErrOverlap": dma.ErrOverlap,
		"ErrFlushed": dma.ErrFlushed, "ErrMemoryKept": dma.ErrMemoryKept, "ErrTaskFailed": dma.ErrTaskFailed, "ErrProtection": dma.ErrProtection,
	},
	"graph": {
		"ErrInvalid": graph.ErrInvalid, "ErrCycle": graph.ErrCycle, "ErrEngine": graph.ErrEngine,
		"ErrPanicked": graph.ErrPanicked, "ErrFlushed": graph.ErrFlushed,
	},
	"mmap": {
		"ErrInvalid": mmap.ErrInvalid, "ErrRange": mmap.ErrRange, "ErrPermission": mmap.ErrPermission,
		"ErrInUse": mmap.ErrInUse, "ErrRemote": mmap.ErrRemote, "ErrClosed": mmap.ErrClosed,
		"ErrNotHeld": mmap.ErrNotHeld, "ErrNotSupported": mmap.ErrNotSupported, "ErrExists": mmap.ErrExists,
		"ErrNotRegistered": mmap.ErrNotRegistered, "ErrMemoryKept": mmap.ErrMemoryKept,
	},
	"oob": {
		"ErrInvalid": oob.ErrInvalid, "ErrClosed": oob.ErrClosed, "ErrInUse": oob.ErrInUse, "ErrFlushed": oob.ErrFlushed,
		"ErrWrongPeer": oob.ErrWrongPeer, "ErrPeerFailed": oob.ErrPeerFailed, "ErrRejected": oob.ErrRejected,
	},
	"pe": {
		"ErrBadState": pe.ErrBadState, "ErrNotConnected": pe.ErrNotConnected, "ErrInUse": pe.ErrInUse,
		"ErrExhausted": pe.ErrExhausted, "ErrFreed": pe.ErrFreed, "ErrTasksHeld": pe.ErrTasksHeld,
		"ErrReentrant": pe.ErrReentrant, "ErrBusy": pe.ErrBusy, "ErrTimeout": pe.ErrTimeout, "ErrDraining": pe.ErrDraining,
		"ErrClosed": pe.ErrClosed, "ErrInvalid": pe.ErrInvalid, "ErrFlushed": pe.ErrFlushed,
		"ErrNotSupported": pe.ErrNotSupported,
	},
	"rdma": {
		"ErrInvalid": rdma.ErrInvalid, "ErrRange": rdma.ErrRange, "ErrPermission": rdma.ErrPermission,
		"ErrNotSupported": rdma.ErrNotSupported, "ErrGID": rdma.ErrGID, "ErrNoData": rdma.ErrNoData,
		"ErrDevice": rdma.ErrDevice, "ErrMemoryKept": rdma.ErrMemoryKept, "ErrFull": rdma.ErrFull, "ErrNotReady": rdma.ErrNotReady,
		"ErrMismatch": rdma.ErrMismatch, "ErrTimeout": rdma.ErrTimeout, "ErrPeerRefused": rdma.ErrPeerRefused, "ErrPeerClosed": rdma.ErrPeerClosed, "ErrPeerDead": rdma.ErrPeerDead,
		"ErrFlushed": rdma.ErrFlushed, "ErrTaskFailed": rdma.ErrTaskFailed, "ErrLocalLength": rdma.ErrLocalLength,
		"ErrLocalProtection": rdma.ErrLocalProtection, "ErrRemoteInvalid": rdma.ErrRemoteInvalid,
		"ErrRemoteAccess": rdma.ErrRemoteAccess, "ErrRemoteOperation": rdma.ErrRemoteOperation,
		"ErrRetryExceeded": rdma.ErrRetryExceeded, "ErrRNRRetryExceeded": rdma.ErrRNRRetryExceeded,
		"ErrNoRoute": rdma.ErrNoRoute, "ErrUnreachable": rdma.ErrUnreachable, "ErrNotListening": rdma.ErrNotListening,
		"ErrRejected": rdma.ErrRejected,
	},
	"rsocket": {
		"ErrInvalid": rsocket.ErrInvalid, "ErrRange": rsocket.ErrRange, "ErrNotSupported": rsocket.ErrNotSupported,
		"ErrProtocol": rsocket.ErrProtocol,
	},
	"sim": {"ErrCrashed": sim.ErrCrashed, "ErrEnded": sim.ErrEnded},
	"syncevent": {
		"ErrInvalid": syncevent.ErrInvalid, "ErrRange": syncevent.ErrRange, "ErrRemote": syncevent.ErrRemote,
		"ErrInUse": syncevent.ErrInUse, "ErrNotHeld": syncevent.ErrNotHeld, "ErrClosed": syncevent.ErrClosed,
		"ErrFlushed": syncevent.ErrFlushed, "ErrPublisher": syncevent.ErrPublisher, "ErrLocal": syncevent.ErrLocal,
	},
	"transfer": {
		"ErrInvalid": transfer.ErrInvalid, "ErrRange": transfer.ErrRange, "ErrPermission": transfer.ErrPermission,
		"ErrInUse": transfer.ErrInUse, "ErrClosed": transfer.ErrClosed, "ErrNotRegistered": transfer.ErrNotRegistered,
		"ErrNoSegment": transfer.ErrNoSegment, "ErrNoAgent": transfer.ErrNoAgent, "ErrOldEntry": transfer.ErrOldEntry, "ErrExists": transfer.ErrExists, "ErrStale": transfer.ErrStale,
		"ErrUnknown": transfer.ErrUnknown, "ErrCanceled": transfer.ErrCanceled, "ErrNotSent": transfer.ErrNotSent,
		"ErrPending": transfer.ErrPending, "ErrProtocol": transfer.ErrProtocol,
	},
	"verbs": {
		"ErrInvalid": verbs.ErrInvalid, "ErrInUse": verbs.ErrInUse, "ErrClosed": verbs.ErrClosed,
		"ErrNotSupported": verbs.ErrNotSupported, "ErrNoDevice": verbs.ErrNoDevice, "ErrState": verbs.ErrState,
		"ErrQueueFull": verbs.ErrQueueFull, "ErrLimit": verbs.ErrLimit, "ErrOverrun": verbs.ErrOverrun,
		"ErrNoRoute": verbs.ErrNoRoute, "ErrUnreachable": verbs.ErrUnreachable, "ErrNotListening": verbs.ErrNotListening,
		"ErrRejected": verbs.ErrRejected,
	},
}

// TestOneValueForOneName: a name means the same error in every package, and two
// names are two errors.
func TestOneValueForOneName(t *testing.T) {
	values, owners := map[string]error{}, map[string]string{}
	for pkg, list := range sentinels {
		for name, err := range list {
			if first, known := values[name]; known {
				assert.Same(t, first, err, "%s of %s and of %s are two values: put it into internal/errs", name, owners[name], pkg)
			}
			values[name], owners[name] = err, pkg
		}
	}
	for name, err := range values {
		for other, second := range values {
			if name != other {
				assert.NotErrorIs(t, err, second, "%s matches %s", name, other)
			}
		}
		assert.NotContains(t, err.Error(), ":", "%s: the text is a part of a message", name)
	}
}

// TestTableIsComplete: the table of this test has every exported sentinel of every
// package outside internal/, samples/, examples/ and test/.
func TestTableIsComplete(t *testing.T) {
	const root = "../.."
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case path == root:
			case name == "internal", name == "samples", name == "examples", name == "test", name == "testdata", strings.HasPrefix(name, "."):
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.VAR {
				continue
			}
			for _, spec := range group.Specs {
				for _, id := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(id.Name, "Err") {
						found++
						assert.Contains(t, sentinels[file.Name.Name], id.Name, "%s: %s.%s is not in the table", path, file.Name.Name, id.Name)
					}
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
	want := 0
	for _, list := range sentinels {
		want += len(list)
	}
	assert.Equal(t, want, found, "sentinels in the table and in the code")
}

// TestStandardErrors: what matches the standard library's sentinels, and what does
// not, though its name is similar.
func TestStandardErrors(t *testing.T) {
	for _, err := range []error{
		verbs.ErrNotSupported,
		fmt.Errorf("somewhere: %w", rdma.ErrNotSupported),
		&pe.UnsupportedError{Feature: "it", Platform: "plan9", Instead: "do without"},
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, err, mmap.ErrNotSupported)
	}
	assert.NotErrorIs(t, errors.ErrUnsupported, verbs.ErrNotSupported)
	for _, std := range []error{net.ErrClosed, fs.ErrClosed} {
		assert.NotErrorIs(t, pe.ErrClosed, std)
	}
	assert.NotErrorIs(t, rdma.ErrPermission, fs.ErrPermission)
}
