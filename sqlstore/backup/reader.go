package backup

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"byre/sqlstore"
)

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
