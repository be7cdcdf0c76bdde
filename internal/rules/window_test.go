package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

type window struct {
	verbs.MW
	kind verbs.MWType
}

func (w window) Type() verbs.MWType { return w.kind }

type region struct {
	verbs.MR
	access verbs.Access
}

func (r region) Access() verbs.Access { return r.access }

func TestCheckBind(t *testing.T) {
	one, two := window{kind: verbs.MWType1}, window{kind: verbs.MWType2}
	bindable := region{access: verbs.AccessMWBind}
	for _, c := range []struct {
		b    *verbs.MWBind
		want string // empty: nothing is wrong
	}{
		{nil, "names no memory window"},
		{&verbs.MWBind{MR: bindable}, "names no memory window"},
		{&verbs.MWBind{MW: two}, "names no memory region"},
		{&verbs.MWBind{MW: two, MR: region{access: verbs.AccessLocalWrite}}, "without AccessMWBind"},
		{&verbs.MWBind{MW: one, MR: bindable, Access: verbs.AccessZeroBased}, "type 1"},
		{&verbs.MWBind{MW: two, MR: bindable, Access: verbs.AccessLocalWrite}, "access rights 0x1"},
		{&verbs.MWBind{MW: two, MR: bindable, Access: verbs.AccessMWBind}, "access rights"},
		{&verbs.MWBind{MW: two, MR: bindable, Access: WindowRights}, ""},
		{&verbs.MWBind{MW: one, MR: bindable}, ""},
	} {
		err := CheckBind(c.b)
		if c.want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, c.want)
	}
}

func TestCheckWindowKey(t *testing.T) {
	one, two := window{kind: verbs.MWType1}, window{kind: verbs.MWType2}
	assert.NoError(t, CheckWindowKey(&verbs.MWBind{MW: two, RKey: 0x123456ff}, 0x12345600))
	assert.ErrorIs(t, CheckWindowKey(&verbs.MWBind{MW: two, RKey: 0x12345700}, 0x12345600), verbs.ErrInvalid)
	assert.NoError(t, CheckWindowKey(&verbs.MWBind{MW: one}, 0x12345600))
}
