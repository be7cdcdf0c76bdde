package proto

import "time"

// Message is any of the messages below.
type Message interface {
	kind() kind
	encode(w *writer)
	decode(r *reader)
}

// kind is the first byte of a message.
type kind uint8

const (
	kindHello kind = iota + 1
	kindChallenge
	kindProof
	kindWelcome
	kindRefuse
	kindEntries
	kindPlan
	kindBlock
	kindResults
	kindAck
	kindDiscard
	kindDirs
	kindText
	kindEnd
	kindVerdict
	kindID
	kindKey
	kindPing
)

func empty(k kind) Message {
	switch k {
	case kindHello:
		return &Hello{}
	case kindChallenge:
		return &Challenge{}
	case kindProof:
		return &Proof{}
	case kindWelcome:
		return &Welcome{}
	case kindRefuse:
		return &Refuse{}
	case kindEntries:
		return &Entries{}
	case kindPlan:
		return &Plan{}
	case kindBlock:
		return &Block{}
	case kindResults:
		return &Results{}
	case kindAck:
		return &Ack{}
	case kindDiscard:
		return &Discard{}
	case kindDirs:
		return &Dirs{}
	case kindText:
		return &Text{}
	case kindEnd:
		return &End{}
	case kindVerdict:
		return &Verdict{}
	case kindID:
		return &ID{}
	case kindKey:
		return &Key{}
	case kindPing:
		return &Ping{}
	}
	return nil
}

// Hello opens a transfer: sender to receiver.
type Hello struct {
	Version  uint16
	Transfer [16]byte // the same for all connections of one run of the sender
	Nonce    Token    // random
	Secret   bool     // the sender has a secret
}

// Challenge answers a Hello.
type Challenge struct {
	Version uint16
	Nonce   Token // random
	Secret  bool  // the receiver has a secret
}

// Proof proves that the sender knows the secret. MAC is zero if there is no secret.
type Proof struct{ MAC Token }

// Welcome proves that the receiver knows the secret. It also opens a window to the receiver's
// memory: the address, length and remote key of a memory region. A slot of the window is
// BlockSize bytes.
type Welcome struct {
	MAC    Token
	Addr   uint64
	Length uint32 // 1 to MaxSlots times BlockSize
	RKey   uint32
}

// Refuse ends the transfer, from either end.
type Refuse struct {
	Code Code
	Text string
}

// EntryType is the type of an Entry.
type EntryType uint8

// The types of entries.
const (
	File EntryType = iota
	Directory
	Symlink
	entryTypes
)

// Entry is one file, directory or symbolic link.
type Entry struct {
	Type     EntryType
	Mode     uint16 // permission bits, 0 to 0777
	Size     uint64 // of a File
	Modified time.Time
	Path     string // relative, with slashes
	Target   string // of a Symlink
}

// Entries announces entries, whose numbers start at First.
type Entries struct {
	First   uint32
	Entries []Entry
}

// Decision is what the receiver decides about an entry.
type Decision uint8

// The decisions.
const (
	Send    Decision = iota // send all of it
	Resume                  // send what follows the first Length bytes, if Hash matches them; otherwise all of it
	Have                    // send nothing: the receiver has it, or keeps something else under its name
	Made                    // send nothing: the receiver has made it
	Refused                 // send nothing: Code and Text give the reason
	decisions
)

// Item is the decision on one entry.
type Item struct {
	Decision Decision
	Length   uint64 // of Resume: how many bytes the receiver has
	Hash     Sum    // of Resume: of these bytes
	Code     Code   // of Refused
	Text     string // of Refused
}

// Plan holds the decisions on entries, in order, starting at First.
type Plan struct {
	First uint32
	Items []Item
}

// Segment is a piece of a file in a block.
type Segment struct {
	Entry  uint32
	Offset uint64
	Length uint32
	Last   bool // the last segment of the file
	Hash   Sum  // of the whole file, if Last is set
}

// Block reports that the data of a block is in a slot of the window: the done message.
type Block struct {
	Slot     uint16
	Segments []Segment
}

// Result is the outcome of an entry whose data was sent, or of a directory.
type Result struct {
	Entry uint32
	Code  Code
	Text  string // the reason, unless Code is OK
}

// Results concludes entries.
type Results struct{ Results []Result }

// Ack returns a slot to the sender.
type Ack struct{ Slot uint16 }

// Discard withdraws an entry that the receiver wants: the sender cannot send it.
type Discard struct {
	Entry uint32
	Code  Code // Changed, Unreadable
}

// DirEntry is a directory whose content is complete.
type DirEntry struct {
	Entry    uint32
	Mode     uint16
	Modified time.Time
	Path     string
}

// Dirs sets modes and times of directories. The receiver answers with Results.
type Dirs struct{ Dirs []DirEntry }

// Text is a plain message, UTF-8.
type Text struct{ Text string }

// End reports that the sender has sent everything.
type End struct{ Entries uint32 }

// Verdict is the receiver's answer to End or Text.
type Verdict struct {
	Good   bool   // no entry was refused or failed
	Stored uint32 // entries that the receiver has
	Failed uint32 // entries that it does not have
	Bytes  uint64 // that arrived in blocks of this connection
}

// ID names the sender.
type ID struct{ Text string }

// Key is the receiver's key, in return for the ID.
type Key struct{ Text string }

// Ping shows that the sending program is alive.
type Ping struct{}

func (*Hello) kind() kind     { return kindHello }
func (*Challenge) kind() kind { return kindChallenge }
func (*Proof) kind() kind     { return kindProof }
func (*Welcome) kind() kind   { return kindWelcome }
func (*Refuse) kind() kind    { return kindRefuse }
func (*Entries) kind() kind   { return kindEntries }
func (*Plan) kind() kind      { return kindPlan }
func (*Block) kind() kind     { return kindBlock }
func (*Results) kind() kind   { return kindResults }
func (*Ack) kind() kind       { return kindAck }
func (*Discard) kind() kind   { return kindDiscard }
func (*Dirs) kind() kind      { return kindDirs }
func (*Text) kind() kind      { return kindText }
func (*End) kind() kind       { return kindEnd }
func (*Verdict) kind() kind   { return kindVerdict }
func (*ID) kind() kind        { return kindID }
func (*Key) kind() kind       { return kindKey }
func (*Ping) kind() kind      { return kindPing }

// magic begins a Hello and a Challenge, to detect a peer that is another program.
const magic = "verbena transfer"

func (m *Hello) encode(w *writer) {
	w.raw(magic)
	w.u16(m.Version)
	w.raw(string(m.Transfer[:]))
	w.token(m.Nonce)
	w.bool(m.Secret)
}

func (m *Hello) decode(r *reader) {
	r.expect(magic)
	m.Version = r.u16()
	copy(m.Transfer[:], r.raw(len(m.Transfer)))
	m.Nonce = r.token()
	m.Secret = r.bool()
}

func (m *Challenge) encode(w *writer) {
	w.raw(magic)
	w.u16(m.Version)
	w.token(m.Nonce)
	w.bool(m.Secret)
}

func (m *Challenge) decode(r *reader) {
	r.expect(magic)
	m.Version = r.u16()
	m.Nonce = r.token()
	m.Secret = r.bool()
}

func (m *Proof) encode(w *writer) { w.token(m.MAC) }
func (m *Proof) decode(r *reader) { m.MAC = r.token() }

func (m *Welcome) encode(w *writer) {
	w.token(m.MAC)
	w.u64(m.Addr)
	w.u32(m.Length)
	w.u32(m.RKey)
}

func (m *Welcome) decode(r *reader) {
	m.MAC = r.token()
	m.Addr = r.u64()
	if m.Length = r.u32(); m.Length == 0 || m.Length%BlockSize != 0 || m.Length > MaxSlots*BlockSize {
		r.fail("a window of %d bytes", m.Length)
	}
	m.RKey = r.u32()
}

func (m *Refuse) encode(w *writer) {
	w.u8(uint8(m.Code))
	w.text(m.Text, MaxNote)
}

func (m *Refuse) decode(r *reader) {
	m.Code = r.failure()
	m.Text = r.text(MaxNote)
}

func (m *Entries) encode(w *writer) {
	w.u32(m.First)
	w.count(len(m.Entries), MaxEntries)
	for i := range m.Entries {
		e := &m.Entries[i]
		w.u8(uint8(e.Type))
		w.u16(e.Mode)
		w.time(e.Modified)
		w.text(e.Path, MaxPath)
		switch e.Type {
		case File:
			w.u64(e.Size)
		case Symlink:
			w.text(e.Target, MaxPath)
		}
	}
}

func (m *Entries) decode(r *reader) {
	m.First = r.u32()
	m.Entries = make([]Entry, r.count(MaxEntries, 17))
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Type = EntryType(r.u8()); e.Type >= entryTypes {
			r.fail("type %d of an entry", e.Type)
		}
		e.Mode = r.mode()
		e.Modified = r.time()
		e.Path = r.text(MaxPath)
		switch e.Type {
		case File:
			if e.Size = r.u64(); e.Size > 1<<63-1 {
				r.fail("a file of %d bytes", e.Size)
			}
		case Symlink:
			e.Target = r.text(MaxPath)
		}
	}
}

func (m *Plan) encode(w *writer) {
	w.u32(m.First)
	w.count(len(m.Items), MaxEntries)
	for i := range m.Items {
		it := &m.Items[i]
		w.u8(uint8(it.Decision))
		switch it.Decision {
		case Resume:
			w.u64(it.Length)
			w.sum(it.Hash)
		case Refused:
			w.u8(uint8(it.Code))
			w.text(it.Text, MaxNote)
		}
	}
}

func (m *Plan) decode(r *reader) {
	m.First = r.u32()
	m.Items = make([]Item, r.count(MaxEntries, 1))
	for i := range m.Items {
		it := &m.Items[i]
		if it.Decision = Decision(r.u8()); it.Decision >= decisions {
			r.fail("decision %d", it.Decision)
		}
		switch it.Decision {
		case Resume:
			it.Length = r.u64()
			it.Hash = r.sum()
		case Refused:
			it.Code = r.failure()
			it.Text = r.text(MaxNote)
		}
	}
}

func (m *Block) encode(w *writer) {
	w.u16(m.Slot)
	w.count(len(m.Segments), MaxSegments)
	for i := range m.Segments {
		s := &m.Segments[i]
		w.u32(s.Entry)
		w.u64(s.Offset)
		w.u32(s.Length)
		w.bool(s.Last)
		if s.Last {
			w.sum(s.Hash)
		}
	}
}

func (m *Block) decode(r *reader) {
	m.Slot = r.slot()
	m.Segments = make([]Segment, r.count(MaxSegments, 17))
	total := 0
	for i := range m.Segments {
		s := &m.Segments[i]
		s.Entry = r.u32()
		s.Offset = r.u64()
		if s.Length = r.u32(); s.Length < 1 || s.Length > BlockSize {
			r.fail("a segment of %d bytes", s.Length)
		}
		if s.Last = r.bool(); s.Last {
			s.Hash = r.sum()
		}
		total += int(s.Length)
	}
	if total > BlockSize {
		r.fail("a block of %d bytes", total)
	}
}

// Length is the number of bytes of all segments.
func (m *Block) Length() int {
	n := 0
	for i := range m.Segments {
		n += int(m.Segments[i].Length)
	}
	return n
}

func (m *Results) encode(w *writer) {
	w.count(len(m.Results), MaxSegments)
	for i := range m.Results {
		res := &m.Results[i]
		w.u32(res.Entry)
		w.u8(uint8(res.Code))
		if res.Code != OK {
			w.text(res.Text, MaxNote)
		}
	}
}

func (m *Results) decode(r *reader) {
	m.Results = make([]Result, r.count(MaxSegments, 5))
	for i := range m.Results {
		res := &m.Results[i]
		res.Entry = r.u32()
		if res.Code = r.code(); res.Code != OK {
			res.Text = r.text(MaxNote)
		}
	}
}

func (m *Ack) encode(w *writer) { w.u16(m.Slot) }
func (m *Ack) decode(r *reader) { m.Slot = r.slot() }

func (m *Discard) encode(w *writer) {
	w.u32(m.Entry)
	w.u8(uint8(m.Code))
}

func (m *Discard) decode(r *reader) {
	m.Entry = r.u32()
	m.Code = r.failure()
}

func (m *Dirs) encode(w *writer) {
	w.count(len(m.Dirs), MaxEntries)
	for i := range m.Dirs {
		d := &m.Dirs[i]
		w.u32(d.Entry)
		w.u16(d.Mode)
		w.time(d.Modified)
		w.text(d.Path, MaxPath)
	}
}

func (m *Dirs) decode(r *reader) {
	m.Dirs = make([]DirEntry, r.count(MaxEntries, 20))
	for i := range m.Dirs {
		d := &m.Dirs[i]
		d.Entry = r.u32()
		d.Mode = r.mode()
		d.Modified = r.time()
		d.Path = r.text(MaxPath)
	}
}

func (m *Text) encode(w *writer) { w.text(m.Text, MaxText) }
func (m *Text) decode(r *reader) { m.Text = r.utf8(MaxText) }

func (m *End) encode(w *writer) { w.u32(m.Entries) }
func (m *End) decode(r *reader) { m.Entries = r.u32() }

func (m *Verdict) encode(w *writer) {
	w.bool(m.Good)
	w.u32(m.Stored)
	w.u32(m.Failed)
	w.u64(m.Bytes)
}

func (m *Verdict) decode(r *reader) {
	m.Good = r.bool()
	m.Stored = r.u32()
	m.Failed = r.u32()
	m.Bytes = r.u64()
}

func (m *ID) encode(w *writer)  { w.text(m.Text, MaxID) }
func (m *ID) decode(r *reader)  { m.Text = r.utf8(MaxID) }
func (m *Key) encode(w *writer) { w.text(m.Text, MaxID) }
func (m *Key) decode(r *reader) { m.Text = r.utf8(MaxID) }

func (*Ping) encode(*writer) {}
func (*Ping) decode(*reader) {}
