// Package statsocket is how the command verbena stat finds and asks running programs: through Unix
// sockets in Linux's abstract namespace, which leave no files. A name has the user's number and a
// random part, so that no other user can take it before. Both ends check the other's user
// (SO_PEERCRED). A server sends its text and reads nothing.
package statsocket

// Snapshot is what a server sends, as JSON. O is metrics.Object.
type Snapshot[O any] struct {
	Program string // the name of its file
	PID     int
	Objects []O
}
