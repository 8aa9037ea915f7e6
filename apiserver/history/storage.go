package history

import (
	"context"
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. All fields but Transformers are required.
type Config struct {
	Driver sqlstore.Driver
	// Feed follows the database of Driver.
	Feed       *watch.Feed
	Authorizer authorizer.UnconditionalAuthorizer
	// Transformers gives the encryption of a resource; nil, or a nil result, means none.
	Transformers func(schema.GroupResource) value.Transformer
	// Prefix returns what the paths of a resource's objects begin with, with which their values
	// are encrypted: without "/registry/" before it, and without a slash at its end.
	Prefix func(sqlstore.Resource) string
}

func (c *Config) transformer(gr schema.GroupResource) value.Transformer {
	if c.Transformers == nil {
		return nil
	}
	return c.Transformers(gr)
}

// Storage is the rest.Storage of changes. It is safe for concurrent use.
type Storage struct {
	config Config
	tail   *tail
}

var (
	_ rest.Getter               = (*Storage)(nil)
	_ rest.Lister               = (*Storage)(nil)
	_ rest.Watcher              = (*Storage)(nil)
	_ rest.Scoper               = (*Storage)(nil)
	_ rest.SingularNameProvider = (*Storage)(nil)
)

// New makes a Storage.
func New(config Config) *Storage { return &Storage{config, newTail(config.Driver, config.Feed)} }

// Run serves watches until ctx ends. Then it ends them, and joins their goroutines.
func (s *Storage) Run(ctx context.Context) error {
	s.tail.run(ctx)
	return nil
}

// New implements rest.Storage.
func (*Storage) New() runtime.Object { return &Change{} }

// NewList implements rest.Lister.
func (*Storage) NewList() runtime.Object { return &ChangeList{} }

// Destroy implements rest.Storage.
func (*Storage) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (*Storage) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (*Storage) GetSingularName() string { return "change" }

// Get implements rest.Getter.
func (s *Storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	revision, err := strconv.ParseInt(name, 10, 64)
	if err != nil || revision < 1 || strconv.FormatInt(revision, 10) != name {
		return nil, apierrors.NewNotFound(groupResource, name)
	}
	changes, err := s.config.Driver.Changes(ctx, sqlstore.ChangesQuery{After: revision - 1, Limit: 1, Kept: true})
	if err != nil {
		return nil, apiError(err)
	}
	if len(changes) == 0 || changes[0].Revision != revision || isInternal(changes[0].New.Key) ||
		shownIn(changes[0].New.Namespace) != request.NamespaceValue(ctx) {
		return nil, s.absent(ctx, revision)
	}
	rights, err := s.rightsOf(ctx)
	if err != nil {
		return nil, err
	}
	if sees, err := rights.sees(ctx, &changes[0], newCreations(s.config.Driver)); err != nil {
		return nil, err
	} else if !sees {
		return nil, s.absent(ctx, revision)
	}
	return s.item(ctx, &changes[0], true), nil
}

// absent returns the error for a revision that the user does not see. It is the same whether there
// is such a change or not.
func (s *Storage) absent(ctx context.Context, revision int64) error {
	compacted, err := s.compacted(ctx, nil)
	if err != nil {
		return err
	}
	if revision <= compacted {
		return expired(revision, compacted)
	}
	return apierrors.NewNotFound(groupResource, strconv.FormatInt(revision, 10))
}

// compacted returns the last revision up to which changes of a resource may be deleted, and of any
// resource if of is nil.
func (s *Storage) compacted(ctx context.Context, of *sqlstore.Resource) (last int64, err error) {
	histories, err := s.config.Driver.Histories(ctx)
	if err != nil {
		return 0, apiError(err)
	}
	for _, h := range histories {
		if of == nil || h.Resource == *of {
			last = max(last, h.Compacted)
		}
	}
	return last, nil
}

func expired(revision, compacted int64) error {
	return apierrors.NewResourceExpired("revision " + strconv.FormatInt(revision, 10) +
		" is not covered by the history any more: the earliest that is, is " + strconv.FormatInt(compacted+1, 10))
}

// apiError converts an error of the driver to one of the API.
func apiError(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, sqlstore.ErrUnavailable), errors.Is(err, sqlstore.ErrClosed), errors.Is(err, watch.ErrClosed):
		unavailable := apierrors.NewServiceUnavailable(sqlstore.Public(err))
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		return unavailable
	}
	// The client does not get the database's message, which may hold SQL or paths.
	klog.ErrorS(err, "The history can't be read")
	return apierrors.NewInternalError(errors.New(sqlstore.Public(err)))
}
