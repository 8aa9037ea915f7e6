package backup

import (
	"bufio"
	"bytes"
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
	lines        *bufio.Reader
	// sum is the SHA-256 of the lines read so far.
	sum hash.Hash
	// skipObjects has next leave out the lines of objects; skipped counts them.
	skipObjects bool
	skipped     int64
	// long has the last line that was longer than the buffer of lines.
	long []byte
}

// objectPrefix is the beginning of the line of an object.
var objectPrefix = []byte(`{"object":`)

func (r *reader) close() { r.decompressor.Close() }

// next decodes the next line. It compares the checksum of the last line: only here is the
// sum of exactly the lines before it at hand.
func (r *reader) next() (line, error) {
	for {
		text, err := r.read()
		if err != nil {
			return line{}, err
		}
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

// read returns the bytes of the next line, which are valid until the next call.
func (r *reader) read() ([]byte, error) {
	text, err := r.lines.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return text, readError(err)
	}
	r.long = append(r.long[:0], text...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(r.long) > maxLine {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", sqlstore.ErrBroken, maxLine)
		}
		text, err = r.lines.ReadSlice('\n')
		r.long = append(r.long, text...)
	}
	return r.long, readError(err)
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
	case errors.As(err, &file):
		return fmt.Errorf("read backup: %w", err)
	}
	return fmt.Errorf("%w: %w", sqlstore.ErrBroken, err) // zstd's
}

// end fails if anything follows on the last line.
func (r *reader) end() error {
	switch _, err := r.lines.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return readError(err)
	}
	return fmt.Errorf("%w: there is more after its last line", sqlstore.ErrBroken)
}
