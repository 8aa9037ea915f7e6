package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

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
		Version: version, Program: program, Revision: s.Revision, Compacted: s.Compacted, Epoch: s.Epoch, Cluster: s.Cluster, Time: s.Time.UTC(), Objects: s.ObjectCount,
		History: historyOf(s.Retained),
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
