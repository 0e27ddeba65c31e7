"""What an error of a store means, and what is to be done about it."""

import re

from discopatch.errors import ImageError
from discopatch.images.image import RefusalReason

NO_BUCKET = "no such bucket: check its name, its region (?region=...) and the endpoint (AWS_ENDPOINT_URL)"

NO_ACCESS = (
    "access denied: check the credentials, such as AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS "
    "or AZURE_STORAGE_ACCOUNT_KEY, and what they may read"
)
NO_FILE = "no such file in the store: check the path"

_QUOTED = re.compile(r"(?<!\w)'[^']*'")  # names of files, in which anything may stand

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
            r"UNRECOGNIZED_CLIENT|status (code )?40[13]|AuthenticationFailed|AuthorizationFailure|"
            r"PERMISSION_DENIED|UNAUTHENTICATED|Permission denied|Could not create a OAuth2",
            re.IGNORECASE,
        ),
        RefusalReason.UNREADABLE,
        NO_ACCESS,
    ),
    (
        re.compile(
            r"NETWORK_CONNECTION|curlCode|timeout|timed out|Couldn't connect|could not connect|"
            r"resolve host|Connection (refused|reset)|error sending request|UNAVAILABLE|SLOW_DOWN|INTERNAL_FAILURE|"
            r"status (code )?5\d\d",
            re.IGNORECASE,
        ),
        RefusalReason.UNREADABLE,
        "the store does not answer: check the network and the endpoint (?endpoint_override=..., AWS_ENDPOINT_URL), "
        "then go on",
    ),
    (
        re.compile(r"Unable to load lib(hdfs|jvm)|HDFS connection failed", re.IGNORECASE),
        RefusalReason.UNREADABLE,
        "HDFS needs Java and Hadoop's libhdfs: set JAVA_HOME, HADOOP_HOME and CLASSPATH as pyarrow's docs say",
    ),
    (
        re.compile(
            r"NO_SUCH_KEY|RESOURCE_NOT_FOUND|BlobNotFound|status (code )?404|Path does not exist", re.IGNORECASE
        ),
        RefusalReason.MISSING,
        NO_FILE,
    ),
)


def cause_of(error: Exception) -> tuple[RefusalReason, str]:
    """Why a store did not give what was asked for, with the remedy and without what may be secret."""
    unknown = f"the store refuses ({type(error).__name__}): check the URI and its options"
    return known_cause(error) or (RefusalReason.UNREADABLE, unknown)


def known_cause(error: Exception) -> tuple[RefusalReason, str] | None:
    """The same, or None for an error that says nothing of the store, such as one of a file that is damaged."""
    if isinstance(error, PermissionError):
        return RefusalReason.UNREADABLE, NO_ACCESS
    text = _QUOTED.sub("", str(error)) if isinstance(error, OSError) else ""
    for pattern, reason, detail in _CAUSES:
        if pattern.search(text):
            return reason, detail
    return (RefusalReason.MISSING, NO_FILE) if isinstance(error, FileNotFoundError) else None


def refusal_of(error: Exception) -> ImageError:
    """What an error of a store means for one image or shard."""
    return ImageError(*cause_of(error))
