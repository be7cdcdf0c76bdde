package wirecode

// Coder codes fields in one direction: it writes them to a Writer, or reads them from a Reader. A
// message that passes its fields to a Coder, one after the other, has one list of them for both
// directions.
type Coder struct {
	w *Writer
	r *Reader
}

// WriteTo makes a Coder that writes the values to w.
func WriteTo(w *Writer) Coder { return Coder{w: w} }

// ReadFrom makes a Coder that reads the values from r. After an error of r it sets them to zero.
func ReadFrom(r *Reader) Coder { return Coder{r: r} }

// Reading reports whether the Coder reads.
func (c Coder) Reading() bool { return c.r != nil }

// Uint8 codes one byte.
func (c Coder) Uint8(v *uint8) { code(c, v, (*Reader).Uint8, (*Writer).Uint8) }

// Bool codes one byte, 1 or 0.
func (c Coder) Bool(v *bool) { code(c, v, (*Reader).Bool, (*Writer).Bool) }

// Uint16 codes two bytes.
func (c Coder) Uint16(v *uint16) { code(c, v, (*Reader).Uint16, (*Writer).Uint16) }

// Uint32 codes four bytes.
func (c Coder) Uint32(v *uint32) { code(c, v, (*Reader).Uint32, (*Writer).Uint32) }

// Uint64 codes eight bytes.
func (c Coder) Uint64(v *uint64) { code(c, v, (*Reader).Uint64, (*Writer).Uint64) }

// Counted codes a count of two bytes and then the bytes, of which a Coder that reads makes no copy.
func (c Coder) Counted(v *[]byte) { code(c, v, (*Reader).Counted, (*Writer).Counted) }

// Fixed codes the bytes of b, whose number both ends know.
func (c Coder) Fixed(b []byte) {
	if c.Reading() {
		c.r.Fixed(b)
	} else {
		c.w.Fixed(b)
	}
}

func code[T any](c Coder, v *T, read func(*Reader) T, write func(*Writer, T)) {
	if c.Reading() {
		*v = read(c.r)
	} else {
		write(c.w, *v)
	}
}
