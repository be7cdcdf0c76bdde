// Package registration knows what memory can be registered, and with which
// rights, on every device.
package registration

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

const known = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead |
	verbs.AccessRemoteAtomic | verbs.AccessRelaxedOrdering

// Check says what is wrong with registering that many bytes with these rights, in
// an error that matches [verbs.ErrInvalid].
func Check(length uint64, access verbs.Access) error {
	switch {
	case length == 0:
		return fmt.Errorf("register memory: it is empty: %w", verbs.ErrInvalid)
	case access&^known != 0:
		return fmt.Errorf("register memory: access rights %#x: there are none beyond %#x: %w", uint32(access), uint32(known), verbs.ErrInvalid)
	case access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && access&verbs.AccessLocalWrite == 0:
		return fmt.Errorf("register memory: remote write or atomic access needs local write access too (IBTA 10.6.3.1): %w", verbs.ErrInvalid)
	}
	return nil
}
