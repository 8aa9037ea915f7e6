// Package apitest helps tests of handlers and of packages that read the stores.
//
//   - NewStores makes empty stores in memory, of the resources that a storage.LookupReader reads. Create
//     and Delete change their objects without validation. The stores end with the test.
//   - WithContext sets in the context of a request what handlers read from it: the request info, a
//     user, a recorder of warnings, the time of receipt and an audit context. A handler under test then
//     needs no authentication and no authorization. Package filters has the whole chain.
//   - ModuleDir finds the sources of the Kubernetes release that byre is built on, for tests that
//     compare byre with them.
//
// A helper fails the test that it was given, and returns no errors. Only tests import this package. It
// imports storage and filters, so the tests in these packages, and in packages that these import, can
// use it only from a package of their own (such as storage_test).
package apitest
