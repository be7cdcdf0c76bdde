package transport

import "time"

// PeerUnreachable takes a hint that nothing listens at the peer's address any
// more. Whoever is on the way can forge such hints: they never end a connection
// by themselves.
func (q *QP) PeerUnreachable(now time.Duration) {}
