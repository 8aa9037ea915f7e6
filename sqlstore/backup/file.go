package backup

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
)

// Write writes a backup of a snapshot to w. program is the name and version of the program
// that calls it. It fails with sqlstore.ErrBroken if no database could load the snapshot,
// and with the errors of the snapshot and of w. After an error, w holds a part of a backup,
// which no reader accepts.
func Write(w io.Writer, s sqlstore.Snapshot, program string) (err error) {
	compressor, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(2))
	if err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	defer func() {
		// Close ends the compressor's goroutines, also after an error.
		if closeErr := compressor.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("write backup: %w", closeErr)
		}
	}()
	a := &writer{out: compressor, sum: sha256.New()}
	a.encoder = json.NewEncoder(&a.buffer)
	a.encoder.SetEscapeHTML(false)
	return a.writeAll(s.Checked(), program)
}

// writer writes lines and hashes them.
type writer struct {
	out     io.Writer
	sum     hash.Hash
	buffer  bytes.Buffer
	encoder *json.Encoder
}

func (a *writer) writeAll(s sqlstore.Snapshot, program string) error {
	if err := a.writeLine(line{Header: &header{
		Version: version, Program: program, Revision: s.Revision, Compacted: s.Compacted, Epoch: s.Epoch, Cluster: s.Cluster,
		Time: s.Time.UTC(), Objects: s.ObjectCount,
		CompleteAfter: s.CompleteAfter, History: historyOf(s.Retained),
	}}); err != nil {
		return err
	}
	var last end
	for r, err := range s.Objects {
		if err == nil {
			last.Objects++
			err = a.writeLine(line{Object: objectOf(r)})
		}
		if err != nil {
			return err
		}
	}
	for r, err := range s.Changes {
		if err == nil {
			last.Changes++
			err = a.writeLine(line{Change: changeOf(r)})
		}
		if err != nil {
			return err
		}
	}
	last.SHA256 = hex.EncodeToString(a.sum.Sum(nil))
	return a.writeLine(line{End: &last})
}

func (a *writer) writeLine(l line) error {
	a.buffer.Reset()
	if err := a.encoder.Encode(l); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if a.buffer.Len() > maxLine {
		return errors.New("write backup: a row is larger than 256 MiB")
	}
	a.sum.Write(a.buffer.Bytes())
	if _, err := a.out.Write(a.buffer.Bytes()); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

const (
	// maxLine bounds the length of a line in bytes, and so the memory that it takes.
	maxLine = 256 << 20
	// maxWindow bounds the memory in bytes that decompression takes; what Write writes
	// needs 8 MiB.
	maxWindow = 128 << 20
)

// ErrNewer means that a newer release wrote the backup, in a version of the format that this
// one does not know.
var ErrNewer = errors.New("the backup is of a newer byre")

// File is a backup that is open for reading.
type File struct {
	sqlstore.Header
	// Program is the name and version of the program that wrote the backup.
	Program string
	file    io.ReadSeeker
}

// Open reads the first line of a backup. It fails with ErrNewer, with sqlstore.ErrBroken if
// the file is no backup, and with the errors of file. The caller closes file after the last
// use of the File.
func Open(file io.ReadSeeker) (*File, error) {
	f := &File{file: file}
	r, first, err := f.start()
	if err != nil {
		return nil, err
	}
	defer r.close()
	f.Program = first.Program
	f.Header = sqlstore.Header{
		Revision: first.Revision, Compacted: first.Compacted, Epoch: first.Epoch, Cluster: first.Cluster, Time: first.Time,
		ObjectCount: first.Objects, CompleteAfter: first.completeAfter(first.CompleteAfter, first.Compacted),
	}
	f.Retained, err = first.retained()
	return f, err
}

// Snapshot returns the snapshot in the backup. Its sequences may be read any number of
// times. Changes reads the whole file; if the checksum is wrong it ends with
// sqlstore.ErrBroken.
func (f *File) Snapshot() sqlstore.Snapshot {
	return sqlstore.Snapshot{
		Header: f.Header,
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			if err := f.objects(yield); err != nil {
				yield(nil, err)
			}
		},
		Changes: func(yield func(*sqlstore.ChangeRow, error) bool) {
			if err := f.changes(yield); err != nil {
				yield(nil, err)
			}
		},
	}
}

// Verify reads the whole backup and returns its digest. It reads the snapshot that follow
// returns for the backup's, so that follow can count the rows. It fails with
// sqlstore.ErrBroken unless the file is complete, its checksum is right and its rows can be
// loaded.
func (f *File) Verify(follow func(sqlstore.Snapshot) sqlstore.Snapshot) (Digest, error) {
	return DigestOf(follow(f.Snapshot()))
}

// objects yields the rows of objects. It returns nil after the last one, and when yield
// returns false.
func (f *File) objects(yield func(*sqlstore.ObjectRow, error) bool) error {
	r, _, err := f.start()
	if err != nil {
		return err
	}
	defer r.close()
	for {
		l, err := r.next()
		if err != nil || l.Object == nil {
			return err
		}
		if !yield(l.Object.row(), nil) {
			return nil
		}
	}
}

// changes yields the rows of changes, and then compares the counts and the checksum in the
// last line. It returns nil without doing so when yield returns false.
func (f *File) changes(yield func(*sqlstore.ChangeRow, error) bool) error {
	r, _, err := f.start()
	if err != nil {
		return err
	}
	defer r.close()
	r.skipObjects = true
	changes := int64(0)
	for {
		l, err := r.next()
		switch {
		case err != nil:
			return err
		case l.Change != nil:
			changes++
			if !yield(l.Change.row(), nil) {
				return nil
			}
		case l.End == nil || l.End.Objects != r.skipped || l.End.Changes != changes:
			return fmt.Errorf("%w: it has %d objects and %d changes, and its last line has other numbers", sqlstore.ErrBroken,
				r.skipped, changes)
		default:
			return r.end()
		}
	}
}

// start returns a reader behind the first line of the file, and that line. The caller closes
// the reader.
func (f *File) start() (*reader, *header, error) {
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	decompressor, err := zstd.NewReader(f.file, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, nil, fmt.Errorf("read backup: %w", err)
	}
	r := &reader{decompressor: decompressor, lines: bufio.NewScanner(decompressor), sum: sha256.New()}
	r.lines.Buffer(make([]byte, 1<<20), maxLine)
	r.lines.Split(splitLine)
	l, err := r.next()
	switch {
	case err != nil:
	case l.Header == nil:
		err = fmt.Errorf("%w: it does not begin as a backup does", sqlstore.ErrBroken)
	case l.Header.Version > version:
		err = fmt.Errorf("%w: %s, version %d of the format; this byre reads version %d", ErrNewer, l.Header.Program,
			l.Header.Version, version)
	case l.Header.Version < 1:
		err = fmt.Errorf("%w: version %d", sqlstore.ErrBroken, l.Header.Version)
	}
	if err != nil {
		r.close()
		return nil, nil, err
	}
	return r, l.Header, nil
}

// reader reads lines and hashes them.
type reader struct {
	decompressor *zstd.Decoder
	lines        *bufio.Scanner
	// sum is the SHA-256 of the lines read so far.
	sum hash.Hash
	// skipObjects has next leave out the lines of objects; skipped counts them.
	skipObjects bool
	skipped     int64
}

// objectPrefix is the beginning of the line of an object.
var objectPrefix = []byte(`{"object":`)

func (r *reader) close() { r.decompressor.Close() }

// next decodes the next line. It compares the checksum of the last line: only here is the
// sum of exactly the lines before it at hand.
func (r *reader) next() (line, error) {
	for {
		if !r.lines.Scan() {
			return line{}, readError(cmp.Or(r.lines.Err(), io.EOF))
		}
		text := r.lines.Bytes()
		if r.skipObjects && bytes.HasPrefix(text, objectPrefix) {
			r.skipped++
			r.sum.Write(text)
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return line{}, fmt.Errorf("%w: %w", sqlstore.ErrBroken, err)
		}
		if l.End != nil && l.End.SHA256 != hex.EncodeToString(r.sum.Sum(nil)) {
			return line{}, fmt.Errorf("%w: the checksum is wrong", sqlstore.ErrBroken)
		}
		r.sum.Write(text)
		return l, nil
	}
}

// splitLine is a bufio.SplitFunc of lines with their ends. It fails if the last one has none.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return 0, nil, err
}

// readError distinguishes damage of the backup, which is sqlstore.ErrBroken, from a failure
// to read the file.
func readError(err error) error {
	var file interface{ Timeout() bool } // of *os.PathError, and of the network's
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it is truncated", sqlstore.ErrBroken)
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: a line is longer than %d bytes", sqlstore.ErrBroken, maxLine)
	case errors.As(err, &file):
		return fmt.Errorf("read backup: %w", err)
	}
	return fmt.Errorf("%w: %w", sqlstore.ErrBroken, err) // zstd's
}

// end fails if anything follows on the last line.
func (r *reader) end() error {
	if r.lines.Scan() {
		return fmt.Errorf("%w: there is more after its last line", sqlstore.ErrBroken)
	}
	return readError(r.lines.Err())
}

// version is the version of the format; see doc.go.
const version = 4

// line is one line of a backup. Exactly one of its members is set.
type line struct {
	Header *header `json:"byre,omitempty"`
	Object *object `json:"object,omitempty"`
	Change *change `json:"change,omitempty"`
	End    *end    `json:"end,omitempty"`
}

type header struct {
	Version   int       `json:"version"`
	Program   string    `json:"program,omitempty"`
	Revision  int64     `json:"revision"`
	Compacted int64     `json:"compacted"`
	Epoch     string    `json:"epoch"`
	Cluster   string    `json:"cluster,omitempty"`
	Time      time.Time `json:"time"`
	Objects   int64     `json:"objects"`
	// CompleteAfter is not there up to version 3; see completeAfter.
	CompleteAfter int64  `json:"completeAfter,omitempty"`
	History       []kept `json:"history,omitempty"`
}

// kept has the sqlstore.Retained of a resource.
type kept struct {
	sqlstore.Resource
	// Compacted is the ResumableAfter.
	Compacted     int64 `json:"compacted"`
	CompleteAfter int64 `json:"completeAfter,omitempty"`
	// RetainedFor is in seconds.
	RetainedFor int64 `json:"retainedFor,omitempty"`
}

// historyOf returns Header.Retained.
func historyOf(retained map[sqlstore.Resource]sqlstore.Retained) (all []kept) {
	for of, r := range retained {
		all = append(all, kept{of, r.ResumableAfter, r.CompleteAfter, int64(r.RetainedFor / time.Second)})
	}
	slices.SortFunc(all, func(a, b kept) int { return a.Resource.Compare(b.Resource) })
	return all
}

// retained is the reverse of historyOf.
func (h *header) retained() (map[sqlstore.Resource]sqlstore.Retained, error) {
	retained := make(map[sqlstore.Resource]sqlstore.Retained)
	for _, r := range h.History {
		if r.Compacted < 0 || r.Compacted > h.Compacted || r.RetainedFor > math.MaxInt64/int64(time.Second) {
			return nil, fmt.Errorf("%w: history of %v from revision %d", sqlstore.ErrBroken, r.Resource, r.Compacted)
		}
		retained[r.Resource] = sqlstore.Retained{ResumableAfter: r.Compacted,
			CompleteAfter: h.completeAfter(r.CompleteAfter, r.Compacted),
			RetainedFor:   time.Duration(max(r.RetainedFor, -1)) * time.Second}
	}
	return retained, nil
}

// completeAfter returns a CompleteAfter. Up to version 3 a backup has one end of each history only.
func (h *header) completeAfter(complete, compacted int64) int64 {
	if h.Version < 4 {
		return compacted
	}
	return complete
}

type object struct {
	sqlstore.ObjectRow
	Value string `json:"value"`
	// Form is the Encoding up to version 2.
	Form string `json:"form,omitempty"`
}

type change struct {
	sqlstore.ChangeRow
	Value string `json:"value,omitempty"`
	// Form is the Encoding up to version 2.
	Form string `json:"form,omitempty"`
}

type end struct {
	Objects int64  `json:"objects"`
	Changes int64  `json:"changes"`
	SHA256  string `json:"sha256"`
}

func objectOf(r *sqlstore.ObjectRow) *object {
	return &object{ObjectRow: *r, Value: sqlstore.Text(r.Value)}
}

func (o *object) row() *sqlstore.ObjectRow {
	o.Encoding = cmp.Or(o.Encoding, o.Form)
	o.ObjectRow.Value = sqlstore.Bytes(o.Value)
	return &o.ObjectRow
}

func changeOf(r *sqlstore.ChangeRow) *change {
	return &change{ChangeRow: *r, Value: sqlstore.Text(r.Value)}
}

func (c *change) row() *sqlstore.ChangeRow {
	c.Encoding = cmp.Or(c.Encoding, c.Form)
	if c.Value != "" {
		c.ChangeRow.Value = sqlstore.Bytes(c.Value)
	}
	return &c.ChangeRow
}
