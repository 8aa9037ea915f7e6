package history

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/storage/changes"
	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. All fields are required.
type Config struct {
	*changes.Log
	// Feed follows the database of the Log's Driver.
	Feed *watch.Feed
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
	found, err := s.config.Driver.Changes(ctx, sqlstore.ChangesQuery{After: revision - 1, Limit: 1, Kept: true})
	if err != nil {
		return nil, changes.APIError(err)
	}
	if len(found) == 0 || found[0].Revision != revision || changes.IsInternal(found[0].New.Key) ||
		shownIn(found[0].New.Namespace) != request.NamespaceValue(ctx) {
		return nil, s.absent(ctx, revision)
	}
	rights, err := s.config.RightsOf(ctx)
	if err != nil {
		return nil, err
	}
	if sees, err := rights.Sees(ctx, &found[0], changes.NewCreations(s.config.Driver)); err != nil {
		return nil, err
	} else if !sees {
		return nil, s.absent(ctx, revision)
	}
	return s.item(ctx, &found[0], true)
}

// absent returns the error for a revision that the user does not see. It is the same whether there
// is such a change or not.
func (s *Storage) absent(ctx context.Context, revision int64) error {
	histories, err := s.config.Driver.Histories(ctx)
	if err != nil {
		return changes.APIError(err)
	}
	if compacted := lastCompacted(histories); revision <= compacted {
		return expired(revision, compacted)
	}
	return apierrors.NewNotFound(groupResource, strconv.FormatInt(revision, 10))
}

// lastCompacted returns the last revision up to which changes of any resource may be deleted.
func lastCompacted(histories []sqlstore.History) (last int64) {
	for i := range histories {
		last = max(last, histories[i].Compacted)
	}
	return last
}

func expired(revision, compacted int64) error {
	return apierrors.NewResourceExpired("revision " + strconv.FormatInt(revision, 10) +
		" is not covered by the history any more: the earliest that is, is " + strconv.FormatInt(compacted+1, 10))
}
