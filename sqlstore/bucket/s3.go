package bucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/spf13/pflag"
)

// partSize is the size in bytes of the parts of an upload, of which one at a time is in memory. S3
// takes 10,000 parts, which are 156 GiB.
const partSize = 16 << 20

// S3 says how to reach an S3 service. An empty field means what the environment variables
// of the AWS tools say. Credentials come from the environment, from the shared credentials
// file, or from the role of the machine or Pod; the first of them that has any counts.
type S3 struct {
	// Endpoint is a URL without a path; empty means AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
	// or else AWS.
	Endpoint string
	// Region is that of the bucket; empty means AWS_REGION, AWS_DEFAULT_REGION, or else
	// the region that the service tells.
	Region string
}

// AddFlags adds the flags --s3-endpoint and --s3-region.
func (s *S3) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Endpoint, "s3-endpoint", s.Endpoint,
		"URL of the S3 service; $AWS_ENDPOINT_URL_S3 or $AWS_ENDPOINT_URL if not set, or else AWS. "+
			"Credentials come from $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, from the shared credentials file, or from the machine's role.")
	fs.StringVar(&s.Region, "s3-region", s.Region,
		"Region of the bucket; $AWS_REGION or $AWS_DEFAULT_REGION if not set, or else what the service says.")
}

// splitS3 returns the parts of s3://BUCKET/KEY, of which either may be empty. ok is false for a path.
func splitS3(name string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(name, "s3:")
	if rest, isURL := strings.CutPrefix(rest, "//"); ok && isURL {
		bucket, key, _ = strings.Cut(rest, "/")
	}
	return bucket, key, ok
}

// Open returns a client of s3://BUCKET or s3://BUCKET/PREFIX, and nil for a path. It reaches for nothing.
func (s S3) Open(place string) (*Client, error) {
	bucket, prefix, ok := splitS3(strings.TrimRight(place, "/"))
	switch {
	case !ok:
		return nil, nil
	case bucket == "":
		return nil, fmt.Errorf("%s: want s3://BUCKET or s3://BUCKET/PREFIX", place)
	}
	service, err := s.connect()
	if err != nil {
		return nil, err
	}
	return NewClient(service, bucket, prefix), nil
}

// connect returns a client of the service. It reaches for nothing.
func (s S3) connect() (*minio.Client, error) {
	endpoint := cmp.Or(s.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3.amazonaws.com")
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("the S3 endpoint must be a URL such as https://s3.example.com")
	}
	transport, err := newTransport(u.Scheme == "https", stallTimeout)
	if err != nil {
		return nil, fmt.Errorf("S3: %w", err)
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{Client: &http.Client{Transport: http.DefaultTransport}},
		}),
		Secure:     u.Scheme == "https",
		Transport:  transport,
		Region:     cmp.Or(s.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
		MaxRetries: 5,
	})
	if err != nil {
		return nil, fmt.Errorf("S3: %w", err)
	}
	return client, nil
}

// Client reads and writes the objects of a bucket whose keys begin with a prefix. An object's name is
// the rest of its key. Errors name the object; they are fs.ErrNotExist if there is none, though the
// bucket is there, and ErrChanged after a conditional write.
type Client struct {
	service *minio.Client
	// prefix is empty, or ends with a slash.
	bucket, prefix string
}

// ErrChanged means that an object is not as the writer has seen it.
var ErrChanged = errors.New("another process has changed it")

// NewClient returns a client of a bucket, or of the folder of a bucket, over a client of the service.
func NewClient(service *minio.Client, bucket, folder string) *Client {
	if folder != "" {
		folder += "/"
	}
	return &Client{service, bucket, folder}
}

// In returns a client of a folder.
func (c *Client) In(folder string) *Client { return NewClient(c.service, c.bucket, c.prefix+folder) }

// explain translates an error of the service.
func (c *Client) explain(name string, err error) error {
	if err == nil {
		return nil
	}
	switch response := minio.ToErrorResponse(err); response.StatusCode {
	case http.StatusNotFound:
		if response.Code != minio.NoSuchBucket {
			err = fs.ErrNotExist
		}
	case http.StatusPreconditionFailed, http.StatusConflict:
		err = ErrChanged
	case http.StatusNotImplemented:
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return fmt.Errorf("s3://%s: %w", strings.TrimSuffix(c.bucket+"/"+c.prefix+name, "/"), err)
}

// List returns the objects and folders, or with recursive all objects, whose names begin with start,
// each in the order of their names. That of a folder ends with a slash.
func (c *Client) List(ctx context.Context, start string, recursive bool) (objects []Entry, err error) {
	options := minio.ListObjectsOptions{Prefix: c.prefix + start, Recursive: recursive}
	for o := range c.service.ListObjectsIter(ctx, c.bucket, options) {
		if o.Err != nil {
			return nil, c.explain(start, o.Err)
		}
		objects = append(objects, Entry{strings.TrimPrefix(o.Key, c.prefix), o.Size, o.LastModified.UTC()})
	}
	return objects, nil
}

// Get opens an object for reading, from an offset on, and of a size unless that is 0. The caller closes
// the body. The ETag is for Replace.
func (c *Client) Get(
	ctx context.Context, name string, offset, size int64,
) (body io.ReadCloser, etag string, err error) {
	var options minio.GetObjectOptions
	if offset > 0 || size > 0 {
		end := offset + size - 1
		if size == 0 {
			end = 0 // that of the object
		}
		if err := options.SetRange(offset, end); err != nil {
			return nil, "", c.explain(name, err)
		}
	}
	body, info, _, err := minio.Core{Client: c.service}.GetObject(ctx, c.bucket, c.prefix+name, options)
	return body, info.ETag, c.explain(name, err)
}

// Seek opens an object for reading and seeking. It fetches what is read. The caller closes the file.
func (c *Client) Seek(ctx context.Context, name string) (io.ReadSeekCloser, error) {
	object, err := c.service.GetObject(ctx, c.bucket, c.prefix+name, minio.GetObjectOptions{})
	return object, c.explain(name, err)
}

// Put makes or replaces an object, and returns its size. The object appears when it is complete. Put
// uploads in parts what is neither a file at its beginning nor in memory.
func (c *Client) Put(ctx context.Context, name string, r io.Reader) (size int64, err error) {
	info, err := c.put(ctx, name, r, minio.PutObjectOptions{})
	return info.Size, err
}

// Replace replaces the object that has an ETag, or makes it if the ETag is empty, and returns the new
// ETag. It fails with ErrChanged if the object has another ETag, and with errors.ErrUnsupported if the service has no
// conditional writes. After any other error it is not known what was written.
func (c *Client) Replace(ctx context.Context, name string, content []byte, etag string) (string, error) {
	var options minio.PutObjectOptions
	if etag == "" {
		options.SetMatchETagExcept("*")
	} else {
		options.SetMatchETag(etag)
	}
	info, err := c.put(ctx, name, bytes.NewReader(content), options)
	return info.ETag, err
}

func (c *Client) put(
	ctx context.Context, name string, r io.Reader, options minio.PutObjectOptions,
) (minio.UploadInfo, error) {
	size := int64(-1) // unknown
	switch r := r.(type) {
	case *bytes.Reader:
		size = r.Size()
	case *os.File:
		info, err := r.Stat()
		if err != nil {
			return minio.UploadInfo{}, err
		}
		size = info.Size()
	}
	options.PartSize, options.SendContentMd5 = partSize, true
	info, err := c.service.PutObject(ctx, c.bucket, c.prefix+name, r, size, options)
	return info, c.explain(name, err)
}

// Delete deletes objects, by one request for a thousand of them. Those that are not there are no error.
func (c *Client) Delete(ctx context.Context, names ...string) error {
	if len(names) == 1 { // some services say that there was no such object
		err := c.service.RemoveObject(ctx, c.bucket, c.prefix+names[0], minio.RemoveObjectOptions{})
		if err = c.explain(names[0], err); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	objects := make(chan minio.ObjectInfo, len(names))
	for _, name := range names {
		objects <- minio.ObjectInfo{Key: c.prefix + name}
	}
	close(objects)
	var errs []error
	for failed := range c.service.RemoveObjects(ctx, c.bucket, objects, minio.RemoveObjectsOptions{}) {
		errs = append(errs, c.explain(strings.TrimPrefix(failed.ObjectName, c.prefix), failed.Err))
	}
	return errors.Join(errs...)
}

// stallTimeout is how long a connection may wait until a byte comes or goes. A service, or what is between,
// that stops in the middle of a body would otherwise have a copy wait for ever.
const stallTimeout = time.Minute

// newTransport makes minio's transport, whose connections fail after a stall.
func newTransport(secure bool, stall time.Duration) (*http.Transport, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return stallConn{conn, stall}, nil
	}
	return t, nil
}

// stallConn is a connection on which neither direction may wait for longer than stall while nothing
// happens in the other one either: whoever sends a large body waits for the answer meanwhile.
type stallConn struct {
	net.Conn
	stall time.Duration
}

func (c stallConn) Read(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c stallConn) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
