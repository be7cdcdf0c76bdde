package rdma

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
)

// bufferVersion is the version of the buffer that a request describes. Zero: the request is to be
// built anew. A request that is posted again describes the same buffer in most programs.
type bufferVersion uint64

func versionOf(b *bufinv.Buf) bufferVersion {
	return bufferVersion(b.Friends(friend.Package{}).Version())
}

// describes reports whether the buffer is as it was.
func (v bufferVersion) describes(b *bufinv.Buf) bool { return v != 0 && v == versionOf(b) }

// follow calls a function that changes how much of the buffer is data, for a request whose
// addresses do not depend on that. If the request has described the buffer, it still does.
func (v *bufferVersion) follow(b *bufinv.Buf, change func() error) error {
	known := v.describes(b)
	err := change()
	*v = 0
	if known && err == nil {
		*v = versionOf(b)
	}
	return err
}
