package token

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"cloud.google.com/go/compute/metadata"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"
)

// brief leaves out of an error what the other side answered, which may repeat
// what was sent.
func brief(err error) error {
	var azure *azidentity.AuthenticationFailedError
	if errors.As(err, &azure) && azure.RawResponse != nil {
		return errors.New(azure.RawResponse.Status)
	}
	var google *metadata.Error
	if errors.As(err, &google) {
		return fmt.Errorf("HTTP %d", google.Code)
	}
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		if answer.ErrorCode != "" {
			return fmt.Errorf("%s: %s", answer.Response.Status, answer.ErrorCode)
		}
		return errors.New(answer.Response.Status)
	}
	var aws interface{ HTTPStatusCode() int }
	if errors.As(err, &aws) && aws.HTTPStatusCode() != 0 {
		return fmt.Errorf("HTTP %d", aws.HTTPStatusCode())
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, ended) {
			return ended
		}
	}
	return errors.New("no kind of credentials that the library knows can be used here")
}
