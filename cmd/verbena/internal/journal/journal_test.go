package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var header = Header{Path: "a/b", Size: 3*proto.BlockSize + 5, Modified: time.Unix(9, 8)}

func never() bool { return false }

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	return f
}

var content = func() []byte {
	b := make([]byte, header.Size)
	for i := 0; i < len(b); i += 4096 {
		b[i] = byte(i >> 12)
	}
	return b
}()

// part is the content of an incomplete file.
func part() []byte { return bytes.Clone(content) }

// filled makes a journal of three blocks.
func filled(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "journal")
	j, err := New(open(t, path), header)
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, j.Append(proto.SumOf(part()[i*proto.BlockSize:][:proto.BlockSize])))
	}
	require.NoError(t, j.Close())
	return path
}

func resumed(t *testing.T, path string, h Header, data []byte) (uint64, proto.Sum) {
	t.Helper()
	j, d, err := Resume(open(t, path), h, bytes.NewReader(data), never)
	require.NoError(t, err)
	defer j.Close()
	return j.Blocks(), d.Sum()
}

func TestResume(t *testing.T) {
	var want proto.Digest
	for i := range 3 {
		want.Add(proto.SumOf(part()[i*proto.BlockSize:][:proto.BlockSize]))
	}
	path := filled(t)
	for range 2 { // resuming changes nothing
		n, sum := resumed(t, path, header, part())
		assert.EqualValues(t, 3, n)
		assert.Equal(t, want.Sum(), sum)
	}
}

// TestResumeAppend: what is appended after a resumption is there at the next.
func TestResumeAppend(t *testing.T) {
	path := filled(t)
	data := part()
	data[proto.BlockSize] ^= 1 // the second block was lost
	j, _, err := Resume(open(t, path), header, bytes.NewReader(data), never)
	require.NoError(t, err)
	assert.EqualValues(t, 1, j.Blocks())
	require.NoError(t, j.Append(proto.SumOf(data[proto.BlockSize:][:proto.BlockSize])))
	require.NoError(t, j.Close())
	n, _ := resumed(t, path, header, data)
	assert.EqualValues(t, 2, n)
}

// TestDamage: a journal, or a file, that is not as it was gives what is right of it.
func TestDamage(t *testing.T) {
	head := int64(len(header.encode()))
	for name, c := range map[string]struct {
		header Header
		change func(t *testing.T, path string, data []byte) []byte
		want   uint64
	}{
		"other size":  {Header{header.Path, header.Size + 1, header.Modified}, nil, 0},
		"other time":  {Header{header.Path, header.Size, header.Modified.Add(1)}, nil, 0},
		"other path":  {Header{"a/c", header.Size, header.Modified}, nil, 0},
		"torn record": {header, func(t *testing.T, path string, data []byte) []byte { return cut(t, path, head+2*recordSize+7, data) }, 2},
		"torn header": {header, func(t *testing.T, path string, data []byte) []byte { return cut(t, path, head-1, data) }, 0},
		"empty":       {header, func(t *testing.T, path string, data []byte) []byte { return cut(t, path, 0, data) }, 0},
		"bad record": {header, func(t *testing.T, path string, data []byte) []byte {
			f := open(t, path)
			_, err := f.WriteAt([]byte{1, 2, 3}, head+recordSize)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			return data
		}, 1},
		"short file": {header, func(t *testing.T, path string, data []byte) []byte { return data[:2*proto.BlockSize+9] }, 2},
		"no file":    {header, func(t *testing.T, path string, data []byte) []byte { return nil }, 0},
		// The last block comes again, and so does one of a file that ends with a block.
		"whole blocks": {Header{header.Path, 2 * proto.BlockSize, header.Modified}, func(t *testing.T, path string, data []byte) []byte {
			j, err := New(open(t, path), Header{header.Path, 2 * proto.BlockSize, header.Modified})
			require.NoError(t, err)
			require.NoError(t, j.Append(proto.SumOf(data[:proto.BlockSize])))
			require.NoError(t, j.Append(proto.SumOf(data[proto.BlockSize:][:proto.BlockSize])))
			require.NoError(t, j.Close())
			return data
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			path, data := filled(t), part()
			if c.change != nil {
				data = c.change(t, path, data)
			}
			n, _ := resumed(t, path, c.header, data)
			assert.Equal(t, c.want, n)
			again, _ := resumed(t, path, c.header, data)
			assert.Equal(t, c.want, again)
		})
	}
}

func cut(t *testing.T, path string, n int64, data []byte) []byte {
	t.Helper()
	require.NoError(t, os.Truncate(path, n))
	return data
}

func TestStop(t *testing.T) {
	_, _, err := Resume(open(t, filled(t)), header, bytes.NewReader(part()), func() bool { return true })
	require.ErrorIs(t, err, ErrStopped)
}

func TestReset(t *testing.T) {
	path := filled(t)
	j, _, err := Resume(open(t, path), header, bytes.NewReader(part()), never)
	require.NoError(t, err)
	require.NoError(t, j.Reset())
	require.NoError(t, j.Close())
	n, _ := resumed(t, path, header, part())
	assert.Zero(t, n)
}

// FuzzResume: no journal makes anything but blocks that are right.
func FuzzResume(f *testing.F) {
	data := part()
	record := func(i int) []byte {
		path := filepath.Join(f.TempDir(), "j")
		file, err := os.Create(path)
		require.NoError(f, err)
		j, err := New(file, header)
		require.NoError(f, err)
		for k := range i {
			require.NoError(f, j.Append(proto.SumOf(data[k*proto.BlockSize:][:proto.BlockSize])))
		}
		require.NoError(f, j.Close())
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		return b
	}
	f.Add(record(0))
	f.Add(record(2))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		n, sum := resumed(t, path, header, data)
		require.LessOrEqual(t, n, uint64(3))
		var want proto.Digest
		for i := range n {
			want.Add(proto.SumOf(data[i*proto.BlockSize:][:proto.BlockSize]))
		}
		require.Equal(t, want.Sum(), sum)
	})
}
