package replication

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"byre/sqlstore/bucket"
)

// resumeState is what a process leaves beside the backlog, for the next one to go on in its folders.
type resumeState struct {
	// Lock is the identity of the database's lock that the process has. It is compared unless Stopped is true: then
	// the process has closed the database, and uploads nothing any more.
	Lock    string `json:"lock"`
	Stopped bool   `json:"stopped"`
	// Epoch is that of the database.
	Epoch string `json:"epoch"`
	// Folders are the current ones of the destinations, by their URLs.
	Folders map[string]resumeFolder `json:"folders"`
}

// resumeFolder is a folder that the next process may go on in.
type resumeFolder struct {
	Name string `json:"name"`
	// Claim is the name of the object that the process makes in the folder before it does. It is random, and the next one
	// finds another one here. Of two processes that have this state, since the disk was cloned or put back to an earlier
	// moment, one alone makes the object.
	Claim string `json:"claim"`
}

func resumePath(path string) string { return filepath.Join(path+localSuffix, "resume.json") }

// write replaces the file, so that after a power failure nothing of before is read.
func (k *resumeState) write(path string) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	name := resumePath(path)
	file, err := os.OpenFile(name+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return err
	}
	directory, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// readResumeState returns what the process before has left if this one may continue there, or nil. The database must
// be the one that was copied, and that process must have ended.
func (r *Replicator) readResumeState() *resumeState {
	text, err := os.ReadFile(resumePath(r.path))
	k := &resumeState{}
	if err != nil || json.Unmarshal(text, k) != nil || k.Epoch != r.epoch ||
		!k.Stopped && (k.Lock == "" || k.Lock != r.lock) {
		return nil
	}
	return k
}

const (
	// sumSize is the size of a digest, and sumsBegin that of the revision before them.
	sumSize   = 16
	sumsBegin = 8
)

// pageSums is a file with a digest of each page of the database, as the last file of the backlog has left it.
//
// Invariant: it has applied all files that have left the backlog. The files that are there may be applied again, in
// their order.
type pageSums struct{ file *os.File }

func openSums(path string) (*pageSums, error) {
	file, err := os.OpenFile(filepath.Join(path+localSuffix, "pages"), os.O_RDWR|os.O_CREATE, 0o600)
	return &pageSums{file}, err
}

func sumOf(page []byte) [sumSize]byte {
	sum := sha256.Sum256(page)
	return [sumSize]byte(sum[:])
}

func sumOffset(page uint32) int64 { return sumsBegin + int64(page-1)*sumSize }

// revision returns that of the last call of setRevision.
func (s *pageSums) revision() (int64, error) {
	var text [sumsBegin]byte
	_, err := s.file.ReadAt(text[:], 0)
	return int64(binary.BigEndian.Uint64(text[:])), err
}

// setRevision notes up to which revision the backlog has all changes.
func (s *pageSums) setRevision(revision int64) error {
	_, err := s.file.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(revision)), 0)
	return err
}

// apply takes over the pages of the LTX file at path.
func (s *pageSums) apply(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder := ltx.NewDecoder(file)
	if err := decoder.DecodeHeader(); err != nil {
		return err
	}
	var first uint32
	var pending []byte // digests of pages from first on
	flush := func() error {
		if len(pending) == 0 {
			return nil
		}
		_, err := s.file.WriteAt(pending, sumOffset(first))
		pending = pending[:0]
		return err
	}
	if err := eachPage(decoder, func(number uint32, page []byte) error {
		if int(number-first) != len(pending)/sumSize || len(pending) >= 64<<10 {
			if err := flush(); err != nil {
				return err
			}
		}
		if len(pending) == 0 {
			first = number
		}
		sum := sumOf(page)
		pending = append(pending, sum[:]...)
		return nil
	}); err != nil {
		return err
	}
	return flush()
}

// removeKnown removes from the LTX file at path, which has the whole database, the pages that were the same in the last
// file of the backlog.
func (s *pageSums) removeKnown(path string, last ltx.Header) error {
	known, err := io.ReadAll(io.NewSectionReader(s.file, 0, sumOffset(last.Commit+1)))
	if err != nil {
		return err
	}
	h, err := rewrite(path, func(*ltx.Header) {}, func(number uint32, page []byte) bool {
		begin := sumOffset(number)
		return number > last.Commit || int64(len(known)) < begin+sumSize || [sumSize]byte(known[begin:]) != sumOf(page)
	})
	if err == nil && h.PageSize != last.PageSize { // which the files of a folder share
		err = fmt.Errorf("the database has pages of %d bytes, and had pages of %d", h.PageSize, last.PageSize)
	}
	return err
}

// eachPage visits the pages of a file, whose header was decoded, and compares the file's checksum. A page is valid
// during the visit.
func eachPage(decoder *ltx.Decoder, visit func(number uint32, page []byte) error) error {
	page := make([]byte, decoder.Header().PageSize)
	for {
		var at ltx.PageHeader
		if err := decoder.DecodePage(&at, page); errors.Is(err, io.EOF) {
			return decoder.Close()
		} else if err != nil {
			return err
		}
		if err := visit(at.Pgno, page); err != nil {
			return err
		}
	}
}

// rewrite replaces the LTX file at path by one with a changed header and the pages that has returns true for. It
// returns the header.
func rewrite(
	path string, change func(*ltx.Header), has func(number uint32, page []byte) bool,
) (h ltx.Header, err error) {
	from, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer from.Close()
	decoder := ltx.NewDecoder(from)
	if err := decoder.DecodeHeader(); err != nil {
		return h, err
	}
	to, err := os.OpenFile(path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	encoder, err := ltx.NewEncoder(to)
	if err != nil {
		return h, err
	}
	h = decoder.Header()
	change(&h)
	if err := encoder.EncodeHeader(h); err != nil {
		return h, err
	}
	err = eachPage(decoder, func(number uint32, page []byte) error {
		if !has(number, page) {
			return nil
		}
		return encoder.EncodePage(ltx.PageHeader{Pgno: number}, page)
	})
	if err = errors.Join(err, encoder.Close(), to.Sync()); err != nil {
		return h, err
	}
	return h, os.Rename(path+".tmp", path)
}

// resume goes on from the backlog of the process before: Litestream captures the whole database once more, and what was
// there already is removed from that file.
func (s *session) resume(opened int64) error {
	_, last, err := s.db.MaxLTX()
	if err != nil {
		return err
	}
	revision, err := s.sums.revision()
	if err != nil {
		return err
	}
	first := last
	for first > 1 {
		if _, err := os.Stat(s.db.LTXPath(0, first-1, first-1)); err != nil {
			break
		}
		first--
	}
	if last == 0 || opened < revision {
		return errors.New("the database is not what was copied")
	}
	// So Litestream takes nothing of the log for captured.
	h, err := rewrite(s.db.LTXPath(0, last, last), func(h *ltx.Header) {
		h.WALOffset, h.WALSize, h.WALSalt1, h.WALSalt2 = litestream.WALHeaderSize, 0, 0, 0
	}, func(uint32, []byte) bool { return true })
	if err != nil {
		return err
	}
	for id := first; id <= last; id++ {
		path := s.db.LTXPath(0, id, id)
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if err := s.sums.apply(path); err != nil {
			return err
		}
		s.backlog = append(s.backlog, localFile{id: id, size: info.Size()})
	}
	s.resumed = h
	return nil
}

// keep notes the current folder of a destination, before anything else is added to it.
func (s *session) keep(destination, folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumeState.Folders[destination] = resumeFolder{Name: folder, Claim: "continued-" + rand.Text()}
	return s.resumeState.write(s.db.Path())
}

// stop notes that all commits are in the backlog.
func (s *session) stop() error {
	if err := s.sums.file.Sync(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumeState.Stopped = true
	return s.resumeState.write(s.db.Path())
}

// resume goes on in the folder of the process before, which is the last one of folders if it returns any. What is there
// must be what that process has copied: no other one has gone on in it, nor begun a later one, and no file is missing.
func (c *copier) resume(ctx context.Context, folders []string) (*folder, error) {
	name := c.before.Name
	if name == "" {
		return nil, nil
	}
	refuse := func(reason string) (*folder, error) {
		c.logger.WarnContext(ctx, "replication: the folder is not continued, and a copy of the whole database is begun",
			"folder", name, "reason", reason)
		return nil, nil
	}
	if len(folders) == 0 || folders[len(folders)-1] != name {
		return refuse("it is not the last one that is there")
	}
	f := &folder{client: c.bucket.client(name), checked: time.Now(), changed: true}
	there, err := scan(ctx, f.client)
	if err != nil {
		return nil, err
	}
	switch {
	case there.Last == 0 || there.HasHole():
		return refuse("files are missing in it")
	case there.Last > uint64(c.session.resumed.MaxTXID):
		return refuse("it has later transactions: an earlier state of the database was put back, or a clone of it serves")
	}
	switch err = c.bucket.claim(ctx, name, c.before.Claim, c.claimant); {
	case errors.Is(err, bucket.ErrChanged) || errors.Is(err, os.ErrExist):
		return refuse("another process continues it: an earlier state of the database was put back, or a clone of it serves")
	case errors.Is(err, ErrUnconditional):
		return refuse("the service has no conditional writes, by which clones of a database are told apart")
	case err != nil:
		return nil, err
	}
	snapshots, err := f.client.LTXFiles(ctx, litestream.SnapshotLevel, 0, false)
	if err != nil {
		return nil, err
	}
	for snapshots.Next() {
		f.snapshot = snapshots.Item().CreatedAt
	}
	if err := errors.Join(snapshots.Err(), snapshots.Close()); err != nil {
		return nil, err
	}
	f.last.Store(there.Last)
	c.needed.Store(there.Last)
	return f, nil
}
