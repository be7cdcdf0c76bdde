package writecpu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func address(n uint32) Address {
	return NewAddress(verbs.GIDEntry{GID: verbs.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}, UDPPort: 4791}, n, 7)
}

func TestAddress(t *testing.T) {
	a := address(0x123456)
	assert.Equal(t, "00000000000000000000ffff7f000001"+"00123456"+"00000007"+"12b7"+"000000000000", a.String())
	b, err := ParseAddress(a.String())
	require.NoError(t, err)
	assert.Equal(t, a, b)
	for _, wrong := range []string{"", "00", strings.Repeat("g", 64), strings.Repeat("0", 64), a.String()[:62] + "01"} {
		_, err := ParseAddress(wrong)
		require.Error(t, err, wrong)
	}
}

func twoMessages() (*Connect, *RandomFill) {
	return &Connect{Client: address(2), Regions: [Regions]Remote{{1, 100, 3}, {4, 200, 6}}},
		&RandomFill{Client: address(2), Context: 9, Seed: 10, PageSize: 10, Pages: []uint32{9, 0}}
}

func TestMessages(t *testing.T) {
	connect, fill := twoMessages()
	c, f, err := Parse(connect.Append(nil))
	require.NoError(t, err)
	assert.Nil(t, f)
	assert.Equal(t, connect, c)
	b := fill.Append(nil)
	assert.Len(t, b, FillLen(2))
	c, f, err = Parse(b)
	require.NoError(t, err)
	assert.Nil(t, c)
	assert.Equal(t, fill, f)
	for n := range b {
		_, _, err := Parse(b[:n])
		require.ErrorIs(t, err, ErrMessage)
	}
}

func TestCheck(t *testing.T) {
	connect, fill := twoMessages()
	require.NoError(t, fill.Check(connect))
	fill.Pages = []uint32{10} // beyond the first region
	require.Error(t, fill.Check(connect))
	for _, f := range []*RandomFill{{}, {PageSize: 1}, {PageSize: Memory + 1, Pages: []uint32{0}}, {PageSize: 1 << 63, Pages: []uint32{0, 0}}} {
		require.Error(t, f.Check(connect))
	}
}

// The two messages of a client may come in either order, and those of others between them.
func TestRequestsInAnyOrder(t *testing.T) {
	connect, fill := twoMessages()
	for _, order := range [][2][]byte{{connect.Append(nil), fill.Append(nil)}, {fill.Append(nil), connect.Append(nil)}} {
		var r Requests
		other := &Connect{Client: address(3)}
		require.NoError(t, r.Add(order[0]))
		require.NoError(t, r.Add(other.Append(nil)))
		c, _ := r.Next()
		require.Nil(t, c)
		require.NoError(t, r.Add(order[1]))
		c, f := r.Next()
		require.Equal(t, connect, c)
		require.Equal(t, fill, f)
		c, _ = r.Next()
		require.Nil(t, c)
	}
	var r Requests
	for i := range uint32(maxWaiting) {
		require.NoError(t, r.Add((&Connect{Client: address(i + 2)}).Append(nil)))
	}
	require.NoError(t, r.Add((&RandomFill{Client: address(maxWaiting + 2)}).Append(nil)))
	require.NoError(t, r.Add(fill.Append(nil)))
	require.LessOrEqual(t, len(r.connects)+len(r.fills), maxWaiting, "the oldest make room")
	require.ErrorIs(t, r.Add([]byte{3}), ErrMessage)
}

func FuzzParse(f *testing.F) {
	connect, fill := twoMessages()
	f.Add(connect.Append(nil))
	f.Add(fill.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, p, err := Parse(b)
		switch {
		case err != nil:
			require.ErrorIs(t, err, ErrMessage)
		case c != nil:
			require.Equal(t, b, c.Append(nil))
		default:
			require.Equal(t, b, p.Append(nil))
			_ = p.Check(connect)
		}
	})
}
