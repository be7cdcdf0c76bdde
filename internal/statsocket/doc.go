// Package statsocket is how the command verbena stat finds and asks running programs: through Unix
// sockets in Linux's abstract namespace, which leave no files. A name has the user's number and a
// random part, so that no other user can take it before. Both ends check the other's user
// (SO_PEERCRED). A server sends its text and reads nothing.
package statsocket

import (
	"errors"
	"time"
)

var (
	// ErrBusy: so many clients wait that nobody can connect. Whose the socket is remains unknown.
	ErrBusy = errors.New("too many clients wait")
	// ErrSilent: the program has not answered within AnswerTimeout.
	ErrSilent = errors.New("no answer")
)

// AnswerTimeout is how long Read waits for the begin of an answer.
const AnswerTimeout = 5 * time.Second

// Snapshot is what a server sends, as JSON. O is metrics.Object.
type Snapshot[O any] struct {
	Program string // the name of its file
	PID     int
	Objects []O
}
