package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// partSize is the size in bytes of the parts of an upload. S3 takes up to 10,000 parts. One
// part at a time is in memory.
const partSize = 64 << 20

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

// s3Address names an object in S3.
type s3Address struct{ bucket, key string }

func parseS3(name string) (address s3Address, ok bool, err error) {
	if !strings.HasPrefix(name, "s3:") {
		return s3Address{}, false, nil
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(name, "s3://"), "/")
	if !strings.HasPrefix(name, "s3://") || bucket == "" || key == "" || strings.HasSuffix(key, "/") {
		return s3Address{}, false, fmt.Errorf("%s: want s3://BUCKET/KEY", name)
	}
	return s3Address{bucket, key}, true, nil
}

// Client returns a client of the service. It reaches for nothing.
func (s S3) Client() (*minio.Client, error) {
	endpoint := cmp.Or(s.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com")
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
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: &http.Client{Transport: http.DefaultTransport}},
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

// writeS3 uploads the file in parts. S3 makes the object when it has all of them.
func (l Location) writeS3(ctx context.Context, address s3Address, fill func(io.Writer) error) error {
	client, err := l.S3.Client()
	if err != nil {
		return err
	}
	if !l.Force {
		switch _, err := client.StatObject(ctx, address.bucket, address.key, minio.StatObjectOptions{}); {
		case err == nil:
			return fmt.Errorf("%s %w", l.Name, ErrExists)
		case minio.ToErrorResponse(err).StatusCode != http.StatusNotFound:
			return l.explain(err)
		}
	}
	read, write := io.Pipe()
	filled := make(chan error, 1)
	go func() {
		err := fill(write)
		write.CloseWithError(err)
		filled <- err
	}()
	_, err = client.PutObject(ctx, address.bucket, address.key, read, -1, minio.PutObjectOptions{
		ContentType: "application/zstd", PartSize: partSize, SendContentMd5: true,
	})
	read.CloseWithError(errUpload) // so that the writes of fill fail after a failed upload
	if fillErr := <-filled; fillErr != nil && !errors.Is(fillErr, errUpload) {
		return fillErr
	}
	return l.explain(err)
}

var errUpload = errors.New("the upload has ended")

func (l Location) getS3(ctx context.Context, address s3Address) (io.ReadSeekCloser, error) {
	client, err := l.S3.Client()
	if err != nil {
		return nil, err
	}
	object, err := client.GetObject(ctx, address.bucket, address.key, minio.GetObjectOptions{})
	return object, l.explain(err)
}

// explain adds the name of the object to an error of the service.
func (l Location) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", l.Name, err)
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
