//go:build !(gc && go1.26 && !go1.27 && linux && (amd64 || arm64) && !purego && !race)

package inorder

type layout struct{}

func fields() layout { return layout{} }

func (layout) known() bool { return false }

type thread struct{}

func (*thread) restore() {}

// Seed does nothing.
func (o *Order) Seed(_, _, _ uint64) {}
