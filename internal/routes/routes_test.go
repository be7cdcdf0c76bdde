package routes

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSource(t *testing.T) {
	localhost := netip.MustParseAddr("127.0.0.1")
	assert.Equal(t, localhost, Source(localhost))
}
