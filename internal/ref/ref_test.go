package ref

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRef(t *testing.T) {
	var none *Ref[int]
	assert.Nil(t, none.Get())
	v := 1
	r := To(&v)
	kept := r
	assert.Same(t, &v, kept.Get())
	r.End()
	assert.Nil(t, kept.Get())
}
