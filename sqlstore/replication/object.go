package replication

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/minio/minio-go/v7"
)

// Position says how far a database, or a copy of it, reaches.
type Position struct {
	// Lineage is State.Holder of the process that made the last commits; it is in the database too.
	Lineage string `json:"lineage"`
	// Revision is that of the last change.
	Revision int64 `json:"revision"`
	// TXID is the last file of a folder; 0 if the position is not that of a copy.
	TXID uint64 `json:"txid"`
}

// LeaseState is the content of the object.
type LeaseState struct {
	// Generation counts the holders.
	Generation int64 `json:"generation"`
	// Holder is the host name and a random text: no two processes have the same. Since is when it took
	// the lease, by its clock, for people.
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	// Milliseconds is the duration, and Renewals how often the holder has written the object.
	Milliseconds int64 `json:"durationMilliseconds"`
	Renewals     int64 `json:"renewals"`
	// Serving is true from before the holder's first commit that a client sees. Keys tells the keys of the last
	// holder for which that was so and those of another server apart.
	Serving bool   `json:"serving"`
	Keys    string `json:"keys"`
	// Folder is the copy of the database from which a new holder goes on; empty if there is none.
	Folder string `json:"folder"`
	// Position is what a new holder must have, in a copy or in its own database: what the last one that served has
	// acknowledged, as of the last renewal, but for what a crash may lose.
	Position Position `json:"position"`
	// Lock is that of NewCandidate.
	Lock string `json:"lock"`
	// HandOverTo asks the holder to stop, so that a candidate of this name takes the lease. Released says that it has
	// stopped.
	HandOverTo string `json:"handOverTo"`
	Released   bool   `json:"released"`
}

// IsReachedBy reports whether a database at p has everything that a new holder must have. One of the lineage of a holder
// that has not served yet is the successor of what that has taken the lease with.
func (s *LeaseState) IsReachedBy(p Position) bool {
	if s.Position == (Position{}) {
		return true // nobody has served
	}
	return (p.Lineage == s.Position.Lineage || p.Lineage == s.Holder) && p.Revision >= s.Position.Revision &&
		(p.TXID == 0 || p.TXID >= s.Position.TXID)
}

// Duration is how long a holder that does nothing keeps the lease at most.
func (s *LeaseState) Duration() time.Duration {
	return time.Duration(s.Milliseconds) * time.Millisecond
}

// LeaseObject is the object that has the lease.
type LeaseObject struct {
	service     *minio.Client
	bucket, key string
}

// NewLeaseObject returns the object of a key. It reaches for nothing.
func NewLeaseObject(service *minio.Client, bucket, key string) *LeaseObject {
	return &LeaseObject{service, bucket, key}
}

// errChanged means that the object is not as the writer has seen it.
var errChanged = errors.New("another process has changed the lease")

// Read returns the lease; exists is false if nobody ever had it.
func (o *LeaseObject) Read(ctx context.Context) (s LeaseState, exists bool, err error) {
	s, etag, err := o.read(ctx)
	return s, etag != "", err
}

// read returns the lease and its ETag, which is empty if there is no object.
func (o *LeaseObject) read(ctx context.Context) (s LeaseState, etag string, err error) {
	etag, err = o.get(ctx, o.key, &s)
	if err == nil && etag != "" && s.Milliseconds <= 0 {
		err = fmt.Errorf("%s is no lease", o.key)
	}
	if err != nil {
		return s, "", fmt.Errorf("read the lease: %w", err)
	}
	return s, etag, nil
}

// get reads an object of JSON, and returns its ETag, which is empty if there is none.
func (o *LeaseObject) get(ctx context.Context, key string, into any) (etag string, err error) {
	body, info, _, err := minio.Core{Client: o.service}.GetObject(ctx, o.bucket, key, minio.GetObjectOptions{})
	if code := minio.ToErrorResponse(err); code.StatusCode == http.StatusNotFound && code.Code != minio.NoSuchBucket {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err == nil {
		err = json.Unmarshal(text, into)
	}
	if err == nil && info.ETag == "" {
		err = fmt.Errorf("%s has no ETag", key)
	}
	return info.ETag, err
}

// Standby is what a process that follows tells of its copy, in the object standby.json beside the lease.
type Standby struct {
	// Name is that of its candidate.
	Name string `json:"name"`
	// The copy is that of Folder, up to Position. Time is when that was so, by its clock, for people.
	Folder   string    `json:"folder"`
	Position Position  `json:"position"`
	Time     time.Time `json:"time"`
}

func (o *LeaseObject) standbyKey() string { return path.Join(path.Dir(o.key), "standby.json") }

// WriteStandby replaces the object. The caller bounds ctx.
func (o *LeaseObject) WriteStandby(ctx context.Context, s Standby) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = o.service.PutObject(ctx, o.bucket, o.standbyKey(), bytes.NewReader(text), int64(len(text)),
		minio.PutObjectOptions{ContentType: "application/json", SendContentMd5: true})
	return err
}

// ReadStandby returns what a standby has told last; zero if none ever did.
func (o *LeaseObject) ReadStandby(ctx context.Context) (s Standby, err error) {
	_, err = o.get(ctx, o.standbyKey(), &s)
	return s, err
}

// write changes the object that has an ETag, or makes it if the ETag is empty. It returns the new ETag. It
// fails with errChanged if the object has another one. After any other error it is not known what was written.
func (o *LeaseObject) write(ctx context.Context, s LeaseState, etag string) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return o.put(ctx, o.key, text, etag)
}

func (o *LeaseObject) put(ctx context.Context, key string, text []byte, etag string) (string, error) {
	options := minio.PutObjectOptions{ContentType: "application/json", SendContentMd5: true}
	if etag == "" {
		options.SetMatchETagExcept("*")
	} else {
		options.SetMatchETag(etag)
	}
	info, err := o.service.PutObject(ctx, o.bucket, key, bytes.NewReader(text), int64(len(text)), options)
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusPreconditionFailed, http.StatusConflict:
		return "", errChanged
	}
	if err != nil {
		return "", fmt.Errorf("write the lease: %w", err)
	}
	return info.ETag, nil
}

// ErrUnconditional means that the service ignores the conditions of a write.
var ErrUnconditional = errors.New("the S3 service ignores If-None-Match or If-Match, by which one server at a time gets the lease: use a service that honours conditional writes")

// Probe fails with ErrUnconditional if the service writes an object that it must not write.
func (o *LeaseObject) Probe(ctx context.Context) (err error) {
	key := o.key + "-probe-" + rand.Text()
	etag, err := o.put(ctx, key, []byte("1"), "")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, o.service.RemoveObject(context.WithoutCancel(ctx), o.bucket, key, minio.RemoveObjectOptions{}))
	}()
	if _, err := o.put(ctx, key, []byte("2"), ""); !errors.Is(err, errChanged) {
		return errors.Join(ErrUnconditional, err)
	}
	if etag, err = o.put(ctx, key, []byte("3"), etag); err != nil {
		return err
	}
	if _, err := o.put(ctx, key, []byte("4"), etag+"0"); !errors.Is(err, errChanged) {
		return errors.Join(ErrUnconditional, err)
	}
	return nil
}

// ErrLeaseNobody means that no process holds the lease.
var ErrLeaseNobody = errors.New("no server holds the lease: start one with --standby")

// RequestHandOver asks the holder to stop, so that the candidate of a name takes the lease. It returns the lease as
// it was.
func (o *LeaseObject) RequestHandOver(ctx context.Context, name string) (LeaseState, error) {
	for {
		s, etag, err := o.read(ctx)
		switch {
		case err != nil:
			return s, err
		case etag == "" || s.Released:
			return s, ErrLeaseNobody
		}
		s.HandOverTo = name
		if _, err = o.write(ctx, s, etag); !errors.Is(err, errChanged) {
			return s, err
		}
	}
}
