package unixsocket

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// CheckUser checks that a peer with that user ID, as SO_PEERCRED has it, belongs to the user of this
// process. If not, the error matches errors.ErrUnsupported.
func CheckUser(peer uint32) error { return checkUser(peer, uint32(os.Geteuid()), overflowUser()) }

// checkUser is CheckUser for any user of this process. All users that a user namespace does not map have one
// common ID (user_namespaces(7)).
func checkUser(peer, own, overflow uint32) error {
	switch {
	case peer != own:
		return fmt.Errorf("its user ID is %d, that of this process is %d: %w", peer, own, errors.ErrUnsupported)
	case peer == overflow:
		return fmt.Errorf("its user ID is %d, which stands for all unmapped users: %w", peer, errors.ErrUnsupported)
	}
	return nil
}

// overflowUser returns the ID that the system shows for users that are not mapped.
func overflowUser() uint32 {
	const usual = 65534
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(n)
}
