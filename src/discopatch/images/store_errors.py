"""What an error of a store means, and what is to be done about it."""

import re

from discopatch.errors import ImageError
from discopatch.images.image import RefusalReason

NO_BUCKET = "no such bucket: check its name, its region (?region=...) and the endpoint (AWS_ENDPOINT_URL)"

# What the stores say, in capitals those of Amazon's software, and what is to be done about it.
_CAUSES = (
    (
        re.compile(r"NO_SUCH_BUCKET|bucket .*(not found|does not exist)|ContainerNotFound", re.IGNORECASE),
        RefusalReason.MISSING,
        NO_BUCKET,
    ),
    (
        re.compile(
            r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|"
            r"UNRECOGNIZED_CLIENT|HTTP status 40[13]|status code 40[13]|AuthenticationFailed|AuthorizationFailure|"
            r"PERMISSION_DENIED|UNAUTHENTICATED|Permission denied|Could not create a OAuth2",
            re.IGNORECASE,
        ),
        RefusalReason.UNREADABLE,
        "access denied: check the credentials, such as AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS "
        "or AZURE_STORAGE_ACCOUNT_KEY, and what they may read",
    ),
    (
        re.compile(
            r"NETWORK_CONNECTION|curlCode|timeout|timed out|Couldn't connect|could not connect|"
            r"resolve host|Connection (refused|reset)|UNAVAILABLE|SLOW_DOWN|INTERNAL_FAILURE|HTTP status 5\d\d",
            re.IGNORECASE,
        ),
        RefusalReason.UNREADABLE,
        "the store does not answer: check the network and the endpoint (?endpoint_override=..., AWS_ENDPOINT_URL), "
        "then go on",
    ),
    (
        re.compile(r"libhdfs|libjvm|HADOOP|HDFS", re.IGNORECASE),
        RefusalReason.UNREADABLE,
        "HDFS needs Java and Hadoop's libhdfs: set JAVA_HOME, HADOOP_HOME and CLASSPATH as pyarrow's docs say",
    ),
    (
        re.compile(r"NO_SUCH_KEY|RESOURCE_NOT_FOUND|BlobNotFound|HTTP status 404|not found", re.IGNORECASE),
        RefusalReason.MISSING,
        "no such file in the store: check the path",
    ),
)


def cause_of(error: Exception) -> tuple[RefusalReason, str]:
    """Why a store did not give what was asked for, with the remedy and without what may be secret."""
    text = str(error)
    if isinstance(error, PermissionError):
        return RefusalReason.UNREADABLE, _CAUSES[1][2]
    for pattern, reason, detail in _CAUSES:
        if pattern.search(text):
            return reason, detail
    if isinstance(error, FileNotFoundError):
        return RefusalReason.MISSING, _CAUSES[-1][2]
    return RefusalReason.UNREADABLE, f"the store refuses ({type(error).__name__}): check the URI and its options"


def is_store_error(error: Exception) -> bool:
    """Whether it is the store that failed, and not the content of a file that is damaged."""
    return isinstance(error, OSError) and any(pattern.search(str(error)) for pattern, _, _ in _CAUSES)


def refusal_of(error: Exception) -> ImageError:
    """What an error of a store means for one image or shard."""
    reason, detail = cause_of(error)
    return ImageError(reason, detail)
